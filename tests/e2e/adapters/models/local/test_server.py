"""The program of the local model's child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fake_local_model import (
    WEIGHTS,
    is_running,
    make_folder,
    pids,
    wait_until,
)

ROOT = Path(__file__).resolve().parents[5]


CHILD = ROOT / "src" / "everthread" / "adapters" / "models" / "local" / "server.py"


def test_the_process_ends_with_its_input(tmp_path: Path) -> None:
    make_folder(tmp_path)
    command = [sys.executable, "-I", str(CHILD), str(tmp_path), str(tmp_path / WEIGHTS), "toy", "2048"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        greeting = json.loads(child.stdout.readline())
        assert greeting["url"].startswith("http://127.0.0.1:")
        assert len(greeting["key"]) >= 32
        child.stdin.close()
        assert child.wait(5) == 0


PARENT = """
import asyncio, sys
from pathlib import Path
from everthread.adapters.models.local.client import LocalModel
from tests.fake_local_model import WEIGHTS, PlainClient, a_request

async def main():
    model = LocalModel(Path(sys.argv[1]), PlainClient)
    async for piece in model.stream(a_request(output_tokens_max=256)):
        print("answering", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_does_not_outlive_a_parent_that_is_killed(tmp_path: Path, how: int) -> None:
    make_folder(tmp_path)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"answering\n"
        [child] = pids(tmp_path)
        assert is_running(child)
        parent.send_signal(how)
    wait_until(lambda: not is_running(child))
