"""A process that is stopped inside a transaction holds the write lock: a start waits for it, within a bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread.adapters.sqlite.lock_holder import LockHolder, find_lock_holder
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.errors import StoreBusy

WORKER = Path(__file__).parent / "lock_worker.py"


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that was stopped inside a transaction."""
    command = [sys.executable, str(WORKER), str(tmp_path)]
    # In a session of its own: the kernel ends a stopped process when the shell that started the tests goes away.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield process
        process.kill()


def test_the_holder_of_the_write_lock_is_found(tmp_path: Path, stopped: subprocess.Popen[str]) -> None:
    path = Settings(tmp_path).db_path
    assert find_lock_holder(path) == LockHolder(stopped.pid, stopped=True)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(10) == 0
    assert find_lock_holder(path) is None


async def test_a_start_waits_until_the_stopped_process_goes_on(tmp_path: Path, stopped: subprocess.Popen[str]) -> None:
    notices: list[str] = []

    def on_wait(text: str) -> None:
        notices.append(text)
        stopped.send_signal(signal.SIGCONT)

    runtime = Runtime(Settings(tmp_path), busy_s_max=0.2)
    runtime.on_wait = on_wait
    async with runtime:
        await runtime.start(lock_wait_s=30.0)
        assert await runtime.store.read(lambda uow: uow.incidents.newest(1))
    [notice] = notices
    assert f"process {stopped.pid}, which holds the write lock of the store and is stopped" in notice


async def test_a_start_ends_at_the_bound_and_names_the_process(tmp_path: Path, stopped: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    async with Runtime(Settings(tmp_path), busy_s_max=0.2) as runtime:
        with pytest.raises(StoreBusy, match=f"Process {stopped.pid} holds the write lock and is stopped") as caught:
            await runtime.start(lock_wait_s=0.5)
    assert f"kill -CONT {stopped.pid}" in str(caught.value)
    assert 0.5 < time.monotonic() - began < 5.0


def test_a_gateway_waits_and_a_command_names_the_process(tmp_path: Path, stopped: subprocess.Popen[str]) -> None:
    (tmp_path / "config.toml").write_text("[gateway.http]\nenabled = false\n")
    program = [sys.executable, "-m", "everthread", "--home", str(tmp_path)]
    read = subprocess.run([*program, "cron", "list"], capture_output=True, text=True, timeout=15, check=False)
    assert (read.returncode, read.stderr) == (0, ""), "a command that only reads does not wait"
    with (
        subprocess.Popen([*program, "gateway", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up,
        subprocess.Popen([*program, "memory", "list"], stderr=subprocess.PIPE, text=True) as command,
    ):
        assert up.stdout is not None
        assert up.stderr is not None
        assert f"Waiting up to 30 s for process {stopped.pid}" in up.stderr.readline()
        _, problem = command.communicate(timeout=15)
        assert command.returncode == 75
        assert f"Process {stopped.pid} holds the write lock and is stopped" in problem
        stopped.send_signal(signal.SIGCONT)
        assert "Stop with Ctrl-C" in up.stdout.readline()
        up.terminate()
        assert up.wait(15) == 0
