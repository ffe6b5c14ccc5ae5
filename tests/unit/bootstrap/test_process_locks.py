"""A process is said to be gone only if it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from everthread.bootstrap.process_locks import ProcessLocks

STAYS = """
import subprocess, sys, time
from pathlib import Path
from everthread.bootstrap.process_locks import ProcessLocks
presence = ProcessLocks(Path(sys.argv[1]), "other")
presence.enter()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def other(folder: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", STAYS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.close()
    return process, child


def test_whoever_is_there_is_not_gone_and_whoever_left_is_not_spoken_of(tmp_path: Path) -> None:
    one, two = ProcessLocks(tmp_path, "one"), ProcessLocks(tmp_path, "two")
    one.enter()
    two.enter()
    assert one.gone() == two.gone() == ProcessLocks(tmp_path, "three").gone() == ()
    two.leave()
    two.leave()
    assert one.gone() == ()
    assert [path.name for path in tmp_path.iterdir()] == ["one.alive"]
    assert (tmp_path / "one.alive").stat().st_mode & 0o777 == 0o600
    one.leave()


def test_a_killed_process_is_gone_although_its_children_live_on(tmp_path: Path) -> None:
    presence = ProcessLocks(tmp_path, "me")
    presence.enter()
    process, child = other(tmp_path)
    try:
        assert presence.gone() == ()
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        assert presence.gone() == (), "one that is stopped may go on"
        process.kill()
        process.wait()
        assert presence.gone() == ("other",)
        assert presence.gone() == ("other",), "until it is dealt with"
        presence.forget("other")
        assert presence.gone() == ()
    finally:
        process.kill()
        os.kill(child, signal.SIGKILL)
        presence.leave()


def test_what_is_not_there_yet_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "beginning.new").touch()
    assert ProcessLocks(tmp_path, "me").gone() == ()
    assert ProcessLocks(tmp_path / "nowhere", "me").gone() == ()


def test_a_file_in_the_way_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "processes").touch()
    presence = ProcessLocks(tmp_path / "processes", "me")
    presence.enter()
    assert presence.gone() == ()
    presence.leave()
