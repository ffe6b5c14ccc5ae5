"""The client of Mem0's library, with a script in place of the child process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everthread.adapters.memory.mem0.codec import Mem0Entry
from everthread.adapters.memory.mem0.local_client import ChildSettings, Mem0LocalClient, ModelEndpoint
from everthread.domain.errors import ProviderError, Rejected, Unavailable

ENDPOINT = ModelEndpoint("m", "http://127.0.0.1:9/v1", "secret-key")
ENTRY = Mem0Entry("turn:1", "s1", (("user", "I keep bees"),), {"entry": "turn:1"})
SERVE = """
print('{"ready": true}', flush=True)
for line in sys.stdin:
    request = json.loads(line)
    with open(sys.argv[0] + ".log", "a") as log:
        log.write(request["do"] + "\\n")
    answer(request)
"""


@asynccontextmanager
async def client_of(tmp_path: Path, program: str) -> AsyncIterator[Mem0LocalClient]:
    """Create a client whose `python` is a script that runs the program."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nsettings = json.loads(sys.stdin.readline())\n{program}"
    )
    script.chmod(0o700)
    client = Mem0LocalClient("mem0", ChildSettings(str(tmp_path), ENDPOINT, ENDPOINT, 1.0), str(script))
    try:
        yield client
    finally:
        await client.aclose()


def answering(body: str) -> str:
    """Build a program that answers each request with these lines of Python."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"def answer(request):\n{lines}\n{SERVE}"


def replying(reply: str) -> str:
    return answering(f"print(json.dumps({{'id': request['id'], **{reply}}}), flush=True)")


async def test_requests_reach_the_child_process_and_come_back(tmp_path: Path) -> None:
    found = "{'found': [{'id': 'm1', 'memory': request.get('query', 'listed')}]}"
    async with client_of(tmp_path, replying(found)) as client:
        await client.start()
        assert [one.memory for one in await client.search("ann", "bees", 3)] == ["bees"]
        assert [one.memory for one in await client.memories("ann", 3)] == ["listed"]
        await client.remove("ann", [])
    assert (tmp_path / "python.log").read_text().split() == ["search", "listed"]


@pytest.mark.parametrize(
    ("kind", "attempt", "error"),
    [("later", 9, Unavailable), ("never", 1, Rejected), ("odd", 1, Unavailable), ("odd", 3, Rejected)],
)
async def test_a_failure_is_temporary_or_permanent_by_its_kind(
    tmp_path: Path, kind: str, attempt: int, error: type[ProviderError]
) -> None:
    async with client_of(tmp_path, replying(f"{{'error': 'the model failed', 'kind': '{kind}'}}")) as client:
        with pytest.raises(error, match="the model failed"):
            await client.add("ann", Mem0Entry("turn:1", "s1", (("user", "x"),), {"entry": "turn:1"}, attempt=attempt))


async def test_a_retry_of_an_entry_waits_for_the_request_that_is_running(tmp_path: Path) -> None:
    body = "import time\ntime.sleep(0.3)\nprint(json.dumps({'id': request['id']}), flush=True)"
    async with client_of(tmp_path, answering(body)) as client:
        await client.start()
        first = asyncio.ensure_future(client.add("ann", ENTRY))
        await asyncio.wait({first}, timeout=0.1)
        first.cancel()
        await client.add("ann", ENTRY)
    assert (tmp_path / "python.log").read_text().split().count("add") == 1


async def test_a_child_that_dies_fails_its_requests_and_is_restarted(tmp_path: Path) -> None:
    body = "if request['do'] == 'check': os._exit(1)\nprint(json.dumps({'id': request['id'], 'found': []}), flush=True)"
    async with client_of(tmp_path, answering(body)) as client:
        with pytest.raises(Unavailable, match="ended during the request"):
            await client.check()
        assert list(await client.search("ann", "bees", 3)) == []


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("""print('{"missing": "faiss"}', flush=True)""", r"faiss is not installed.*pip install 'everthread\[mem0\]'"),
        ("""print('{"error": "no folder"}', flush=True)""", "can't start: no folder"),
        ("print('nonsense', flush=True)", "a line that can't be read"),
        ("", "can't start: it exited"),
    ],
)
async def test_a_child_that_does_not_start_reports_the_reason(tmp_path: Path, program: str, message: str) -> None:
    async with client_of(tmp_path, program) as client:
        with pytest.raises(Unavailable, match=message):
            await client.start()


def test_the_key_of_an_endpoint_is_not_printed() -> None:
    assert "secret-key" not in repr(ENDPOINT)
