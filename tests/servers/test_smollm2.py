"""Test the real local model. The setup command downloads it once into `.cache`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fake_local_model import PlainClient, a_request, is_running, wait_until

from everthread.adapters.models.local.client import LocalModel
from everthread.config.schema import Settings
from everthread.ports.model import Answer, Delta, Request

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "You are Everthread, a helpful assistant. Use the facts about the user to answer. Be short."
TOKENS_PER_S_MIN = 3.0
pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder() -> Path:
    home = ROOT / ".cache" / "local-home"
    command = [sys.executable, "-m", "everthread", "--home", str(home), "setup", "local"]
    subprocess.run(command, check=True, timeout=280)
    return Settings(home).local_model_path


@asynccontextmanager
async def local_model(folder: Path) -> AsyncIterator[LocalModel]:
    model = LocalModel(folder, PlainClient)
    try:
        yield model
    finally:
        await model.aclose()


async def said(model: LocalModel, request: Request) -> str:
    pieces = [piece async for piece in model.stream(request)]
    assert isinstance(pieces[-1], Answer)
    return pieces[-1].message.content


async def test_an_answer_is_streamed_at_an_acceptable_speed(folder: Path, record_property: Any) -> None:
    async with local_model(folder) as model:
        await said(model, a_request("Hello", output_tokens_max=1))
        began, times = time.monotonic(), list[float]()
        async for piece in model.stream(a_request("Write about the sea.", system=SYSTEM, output_tokens_max=64)):
            if isinstance(piece, Delta):
                times.append(time.monotonic())
    per_s = (len(times) - 1) / (times[-1] - times[0])
    record_property("first_piece_s", round(times[0] - began, 2))
    record_property("tokens_per_s", round(per_s, 1))
    assert len(times) > 5
    assert per_s > TOKENS_PER_S_MIN


async def test_the_model_uses_recalled_entries(folder: Path) -> None:
    recall = "Facts about me:\n- My dog is called Bruno."
    async with local_model(folder) as model:
        answer = await said(model, a_request("What is my dog's name?", system=SYSTEM, recall=recall))
    assert "Bruno" in answer


async def test_a_cancelled_answer_does_not_delay_the_next(folder: Path) -> None:
    async with local_model(folder) as model:
        stream: Any = model.stream(a_request("Tell me a long story about a fox.", output_tokens_max=256))
        async with aclosing(stream) as pieces:
            await anext(pieces)
        began = time.monotonic()
        assert await said(model, a_request("Say hello.", output_tokens_max=3))
        waited_s = time.monotonic() - began
        began = time.monotonic()
        await said(model, a_request("Tell me a long story about a fox.", output_tokens_max=256))
        assert waited_s < (time.monotonic() - began) / 2


PARENT = """
import asyncio, sys
from pathlib import Path
from everthread.adapters.models.local.client import LocalModel
from tests.fake_local_model import PlainClient, a_request

async def main():
    model = LocalModel(Path(sys.argv[1]), PlainClient)
    async for piece in model.stream(a_request("Tell me a story.", output_tokens_max=256)):
        print("answering", flush=True)

asyncio.run(main())
"""


def test_the_model_server_ends_when_its_parent_is_killed(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"answering\n"
        [child] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert is_running(int(child))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(int(child)))
