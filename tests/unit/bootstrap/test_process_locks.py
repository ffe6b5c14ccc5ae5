"""Process locks report a holder as dead only after it died."""

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
presence.acquire()
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


def test_live_and_released_holders_are_not_dead(tmp_path: Path) -> None:
    one, two = ProcessLocks(tmp_path, "one"), ProcessLocks(tmp_path, "two")
    one.acquire()
    two.acquire()
    assert one.dead_holders() == two.dead_holders() == ProcessLocks(tmp_path, "three").dead_holders() == ()
    two.release()
    two.release()
    assert one.dead_holders() == ()
    assert [path.name for path in tmp_path.iterdir()] == ["one.alive"]
    assert (tmp_path / "one.alive").stat().st_mode & 0o777 == 0o600
    one.release()


def test_a_killed_process_is_dead_although_its_children_live_on(tmp_path: Path) -> None:
    presence = ProcessLocks(tmp_path, "me")
    presence.acquire()
    process, child = other(tmp_path)
    try:
        assert presence.dead_holders() == ()
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        assert presence.dead_holders() == (), "a stopped process may continue"
        process.kill()
        process.wait()
        assert presence.dead_holders() == ("other",)
        assert presence.dead_holders() == ("other",), "reported until it is removed"
        presence.remove("other")
        assert presence.dead_holders() == ()
    finally:
        process.kill()
        os.kill(child, signal.SIGKILL)
        presence.release()


def test_an_unfinished_lock_file_is_no_dead_holder(tmp_path: Path) -> None:
    (tmp_path / "beginning.new").touch()
    assert ProcessLocks(tmp_path, "me").dead_holders() == ()
    assert ProcessLocks(tmp_path / "nowhere", "me").dead_holders() == ()


def test_a_file_in_place_of_the_folder_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "processes").touch()
    presence = ProcessLocks(tmp_path / "processes", "me")
    presence.acquire()
    assert presence.dead_holders() == ()
    presence.release()
