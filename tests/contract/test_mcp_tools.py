"""MCP servers keep the contract of all tools, and hold nothing up whatever they do."""

import asyncio
import logging
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from everthread.adapters.mcp.servers import McpServer, McpServers
from everthread.domain.errors import ToolFailed
from everthread.ports.tools import Tool
from everthread.testing.contracts.lanes import RealClock
from everthread.testing.contracts.store.fixtures import StillClock
from everthread.testing.contracts.tools import USE, MakeOffer, OfferedTools, ToolsContract

FIXTURES = Path(__file__).parents[1] / "servers" / "mcp_fixtures"
SECRET = "secret-token-123"
START_S = 15.0


def with_sdk(**more: object) -> McpServer:
    return McpServer(sys.executable, (str(FIXTURES / "with_sdk.py"),), **more)  # type: ignore[arg-type]


def misbehaving(*how: str, **more: object) -> McpServer:
    return McpServer(sys.executable, (str(FIXTURES / "misbehaving.py"), *how), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    clock: StillClock | None = None, start_s: float = START_S, **servers: McpServer
) -> AsyncIterator[McpServers]:
    given = McpServers(servers, clock or RealClock(), environ=os.environ | {"OPENAI_API_KEY": SECRET})
    await given.start(start_s)
    try:
        yield given
    finally:
        await given.aclose()


def tool(servers: McpServers, name: str) -> Tool:
    [found] = [tool for tool in servers.tools() if tool.name == f"mcp__{name}"]
    return found


async def call(servers: McpServers, name: str, **arguments: str) -> str:
    return await tool(servers, name).run(arguments, USE)


async def failure(servers: McpServers, name: str) -> str:
    with pytest.raises(ToolFailed) as raised:
        await call(servers, name)
    return str(raised.value)


async def is_gone(pid: int) -> bool:
    for _ in range(100):
        if not _is_there(pid):
            return True
        await asyncio.sleep(0.02)
    return False


def _is_there(pid: int) -> bool:
    """A zombie of ours is there; in a container without an init, nobody takes an orphan's away."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status or f"PPid:\t{os.getpid()}\n" in status


class TestMcpTools(ToolsContract):
    @pytest.fixture
    def offer(self) -> MakeOffer:
        @asynccontextmanager
        async def offer() -> AsyncIterator[OfferedTools]:
            async with running(a=misbehaving("well"), b=misbehaving("well")) as servers:
                assert servers.problems() == {}
                yield OfferedTools(servers.tools(), echo="mcp__a__echo", fails="mcp__a__fails", hangs="mcp__b__hang")

        return offer


async def test_a_server_of_the_sdk_serves_all_its_pages_and_kinds_of_answers() -> None:
    async with running(a=with_sdk(env={"MEANT": "for it"})) as servers:
        names = [tool.name for tool in servers.tools()]
        assert len(names) == 211
        assert names == sorted(names)
        assert tool(servers, "a__many_199").schema.description == "Does many_199."
        assert await call(servers, "a__echo", text="hi") == "echo: hi"
        assert await call(servers, "a__empty") == "(nothing was returned)"
        assert await call(servers, "a__structured") == '{"n":1}'
        assert await failure(servers, "a__fails") == "no such city"
        huge = await call(servers, "a__huge")
        assert len(huge) < 100_100
        assert huge.endswith("z")
        assert await call(servers, "a__media") == "\n".join(
            (
                "look:",
                "[image: image/png, 8 bytes]",
                "[audio: audio/wav, 9.0 kB]",
                "[resource file:///a.bin: application/zip, 12.0 MB]",
                "[resource file:///a.txt: unknown type, 6 bytes]",
                "inside",
                "[resource file:///b: image/gif, 8 bytes]",
            )
        )
        environment = await call(servers, "a__environment")
        assert "MEANT=for it" in environment
        assert "PATH=" in environment
        assert SECRET not in environment
        assert "OPENAI" not in environment


async def test_a_changed_set_of_tools_is_told_and_taken_over_on_request() -> None:
    async with running(a=with_sdk()) as servers:
        before = servers.tools()
        await call(servers, "a__change")
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        assert servers.changed
        assert servers.tools() is before
        assert await servers.refresh()
        assert not servers.changed
        assert await call(servers, "a__brand_new", text="!") == "brand_new: !"
        assert not await servers.refresh()


async def test_a_server_that_takes_long_to_start_holds_nobody_up_and_is_there_later() -> None:
    async with running(start_s=0.2, a=misbehaving("slow", "1")) as servers:
        assert "no answer within" in servers.problems()["a"]
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        began = time.monotonic()
        assert not await servers.refresh(0.1, open_s=10.0)
        assert time.monotonic() - began < 0.5
        assert not servers.changed, "it is being started"
        for _ in range(200):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        assert await servers.refresh(0.1, open_s=10.0)
        assert not servers.changed
        assert await call(servers, "a__echo", text="late") == "late"


async def test_a_change_is_not_missed_by_whoever_stops_waiting_for_it() -> None:
    async with running(a=with_sdk()) as servers:
        await call(servers, "a__change")
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        asking = asyncio.ensure_future(servers.refresh())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not servers.changed, "it is being asked"
        asking.cancel()
        await asyncio.wait({asking})
        assert servers.changed
        assert await servers.refresh()


async def test_what_may_run_unasked_is_said_by_trust_and_by_hints() -> None:
    async with running(a=with_sdk(), b=misbehaving(trust=True, timeout_s=7.0)) as servers:
        seen = {name: (tool(servers, name).dangerous, tool(servers, name).parallel) for name in ("a__echo", "a__again")}
        assert seen == {"a__echo": (False, True), "a__again": (True, True)}
        assert tool(servers, "a__slow").dangerous
        assert not tool(servers, "a__slow").parallel
        assert not tool(servers, "b__die").dangerous
        assert not tool(servers, "b__die").parallel
        assert tool(servers, "b__die").timeout_s > 7.0


async def test_servers_that_fail_hold_up_nobody_and_say_why(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    async with running(
        start_s=6.0,
        absent=McpServer("no-such-command-anywhere"),
        both=McpServer("x", url="http://localhost"),
        exits=misbehaving("exits"),
        folder=misbehaving(cwd="/no/such/folder"),
        ftp=McpServer(url="ftp://127.0.0.1/x"),
        noise=misbehaving("noise"),
        nobody=McpServer(url="http://127.0.0.1:9/mcp", headers={"Authorization": f"Bearer {SECRET}"}),
        off=McpServer("no-such-command-anywhere", disabled=True),
        silent=misbehaving("silent"),
        works=misbehaving(),
    ) as servers:
        assert time.monotonic() - began < 6.0 + 5.0
        assert servers.problems() == {
            "absent": "no-such-command-anywhere was not found",
            "both": "it needs either a command or a url",
            "exits": "it exited with status 1: there is no such database",
            "folder": "/no/such/folder was not found",
            "ftp": "its url must begin with http:// or https://",
            "nobody": "can't connect: All connection attempts failed",
            "noise": "no answer within 6 s, and it writes to its standard output what is no MCP",
            "silent": "no answer within 6 s",
        }
        assert await call(servers, "works__echo", text="fine") == "fine"
    assert capfd.readouterr() == ("", "")


async def test_a_server_that_gave_up_the_old_handshake_is_met_with_the_new_one() -> None:
    async with running(a=misbehaving("modern")) as servers:
        assert servers.problems() == {}
        assert await call(servers, "a__echo", text="fine") == "fine"


async def test_garbage_between_the_messages_is_passed_over() -> None:
    async with running(a=misbehaving("garbage")) as servers:
        assert await call(servers, "a__echo", text="fine") == "fine"
        assert await call(servers, "a__bytes") == "caf\ufffd"
        assert await failure(servers, "a__odd") == "its answer is not valid MCP"
        assert servers.problems() == {}


async def test_tools_that_are_too_large_or_not_valid_are_left_out_and_named() -> None:
    async with running(a=misbehaving("sloppy"), b=misbehaving("pages")) as servers:
        names = [tool.name for tool in servers.tools() if tool.name.startswith("mcp__a__")]
        # The marks of names that were taken or too long.
        names = [re.sub("_[0-9a-f]{8}$", "_MARK", name.removeprefix("mcp__a__")) for name in names]
        assert names == [
            *("bytes", "die", "echo", "endless", "fails", "hang", "long" * 11 + "lon_MARK", "no_type", "odd", "pid"),
            *("st_dte_suche_MARK", "st_dte_suche_MARK", "wordy"),
        ]
        assert len(tool(servers, "a__wordy").schema.description) == 2_000
        assert servers.problems() == {
            "a": "the schema of no_schema is not valid; the schema of ? is not valid; "
            "the schema of big_schema is over 64 KB",
            "b": "no more than its first 8 tools are taken",
        }


class _Refusing(BaseHTTPRequestHandler):
    """Refuses everybody at `/refuses`, never ends at `/endless`, and lets everybody wait anywhere else."""

    def do_POST(self) -> None:
        if self.path == "/refuses":
            self.send_error(401)
        elif self.path == "/endless":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(b"[" * 1_000_000)
        else:
            time.sleep(4.0)

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_an_http_server_that_refuses_or_never_answers_says_so_in_its_line() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}"
        async with running(
            start_s=3.0,
            a=McpServer(url=f"{url}/refuses"),
            b=McpServer(url=f"{url}/b"),
            c=McpServer(url=f"{url}/sse"),
            d=McpServer(url=f"{url}/endless"),
        ) as servers:
            assert servers.problems() == {
                "a": "Server returned an error response (HTTP status 401)",
                "b": "no answer within 3 s",
                "c": "it answered with HTTP status 501",
                "d": "it sent a message of more than 16 MB",
            }
        http.shutdown()


async def test_a_call_that_is_not_answered_fails_in_time_and_the_next_one_works() -> None:
    async with running(a=misbehaving(timeout_s=0.5)) as servers:
        began = time.monotonic()
        assert await failure(servers, "a__hang") == "the MCP server a has not answered within 0.5 s"
        assert time.monotonic() - began < 2.0
        pid = await call(servers, "a__pid")
        await failure(servers, "a__hang")
        assert await call(servers, "a__pid") == pid


async def test_a_server_that_dies_is_started_again_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(a=misbehaving(env={"KEY": SECRET}), b=misbehaving()) as servers:
        first = await call(servers, "a__pid")
        waiting = asyncio.ensure_future(failure(servers, "a__hang"))
        await asyncio.sleep(0.1)
        why = "it exited with status 3: about to die of ***"
        assert await failure(servers, "a__die") == f"the MCP server a is not running: {why}; the rest works"
        assert why in await waiting
        assert servers.problems() == {"a": why}
        assert await call(servers, "b__echo", text="fine") == "fine"
        both = await asyncio.gather(call(servers, "a__pid"), call(servers, "a__pid"))
        assert both[0] == both[1] != first
        assert servers.problems() == {}
        assert await is_gone(int(first))
    assert "about to die of ***" in caplog.text
    assert SECRET not in caplog.text


async def test_a_server_that_does_not_come_back_is_tried_again_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    clock = StillClock()
    async with running(clock, a=misbehaving("once", str(tmp_path / "marker"))) as servers:
        assert "it exited with status 3" in await failure(servers, "a__die")
        assert "gone for good; the rest works" in await failure(servers, "a__echo")
        assert "gone for good (next try in 1 s)" in await failure(servers, "a__echo")
        clock.time += 1.0
        assert "gone for good; the rest works" in await failure(servers, "a__echo")
        assert "gone for good (next try in 2 s)" in await failure(servers, "a__echo")
        assert len(servers.tools()) == 8
        (tmp_path / "marker").unlink()
        assert not await servers.refresh()
        assert await call(servers, "a__echo", text="back") == "back"


async def test_an_endless_message_ends_the_connection_and_not_the_process() -> None:
    async with running(a=misbehaving(timeout_s=15.0)) as servers:
        assert "it sent a message of more than 16 MB" in await failure(servers, "a__endless")
        assert await call(servers, "a__echo", text="fine") == "fine"


async def test_no_process_outlives_the_end(tmp_path: Path) -> None:
    family = tmp_path / "pid"
    async with running(
        a=misbehaving(), stubborn=misbehaving("stubborn"), family=misbehaving("family", str(family))
    ) as servers:
        pids = [int(await call(servers, f"{name}__pid")) for name in ("a", "stubborn", "family")]
        pids.append(int(family.read_text()))
        began = time.monotonic()
        await servers.aclose()
        assert time.monotonic() - began < 5.0
        assert all([await is_gone(pid) for pid in pids])
        assert not await servers.refresh()
        assert "closed" in await failure(servers, "a__echo")


async def test_a_server_that_is_being_opened_ends_with_the_rest() -> None:
    servers = McpServers({"a": misbehaving("silent")}, RealClock(), environ=os.environ)
    starting = asyncio.ensure_future(servers.start(START_S))
    children: list[int] = []
    for _ in range(500):
        if children := _children():
            break
        await asyncio.sleep(0.02)
    await servers.aclose()
    await asyncio.wait_for(starting, 2.0)
    assert children
    assert all([await is_gone(pid) for pid in children])


async def test_a_loop_that_is_left_without_a_close_leaves_no_process() -> None:
    def leave() -> int:
        async def begin() -> int:
            servers = McpServers({"a": misbehaving("stubborn")}, RealClock(), environ=os.environ)
            await servers.start(START_S)
            return int(await call(servers, "a__pid"))

        return asyncio.run(begin())

    assert await is_gone(await asyncio.to_thread(leave))


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
