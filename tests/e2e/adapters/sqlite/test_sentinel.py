"""Two processes change the sentinel of one database at the same time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread.adapters.sqlite import sentinel
from everthread.adapters.sqlite.sentinel import known_backups, record_backup
from everthread.adapters.sqlite.store import SqliteStore

# Reads the sentinel, waits for a line, and writes it with one more backup.
SLOW_CHANGE = """
import sys
from pathlib import Path
from msgspec.structs import replace
from everthread.adapters.sqlite.sentinel import KnownBackup, update_sentinel

def add(known):
    print("read", flush=True)
    sys.stdin.readline()
    return replace(known, backups=(*known.backups, KnownBackup("/theirs", 1, "", 1.0)))

update_sentinel(Path(sys.argv[1]), add)
"""
BACKUPS = """
import sys
from pathlib import Path
from everthread.adapters.sqlite.sentinel import record_backup

print("ready", flush=True)
sys.stdin.readline()
for archive in sys.argv[2:]:
    record_backup(Path(sys.argv[1]), Path(archive), 1.0)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    async def create() -> None:
        await (await SqliteStore.open(tmp_path / "everthread.db")).aclose()

    asyncio.run(create())
    return tmp_path / "everthread.db"


def start(script: str, *arguments: Path) -> subprocess.Popen[str]:
    """Start a process and wait for its first line."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.fixture
def slow(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has read the sentinel and has not written it yet."""
    process = start(SLOW_CHANGE, path)
    yield process
    process.kill()
    process.communicate()


def archive(path: Path, name: str) -> Path:
    file = path.with_name(name)
    file.write_bytes(name.encode())
    return file


def recorded(path: Path) -> set[str]:
    return {Path(backup.file).name for backup in known_backups(path)}


def test_a_change_waits_for_that_of_another_process(path: Path, slow: subprocess.Popen[str]) -> None:
    ours = threading.Thread(target=record_backup, args=(path, archive(path, "ours"), 2.0))
    ours.start()
    ours.join(0.2)
    assert ours.is_alive(), "it must not write what the other process overwrites"
    go(slow)
    assert slow.wait(10) == 0
    ours.join(10)
    assert recorded(path) == {"theirs", "ours"}


def test_a_killed_process_releases_the_sentinel(path: Path, slow: subprocess.Popen[str]) -> None:
    slow.kill()
    slow.wait(10)
    record_backup(path, archive(path, "ours"), 2.0)
    assert recorded(path) == {"ours"}


def test_a_stopped_process_delays_a_change_for_a_limited_time(
    path: Path, slow: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(slow.pid, signal.SIGSTOP)
    monkeypatch.setattr(sentinel, "LOCK_S_MAX", 0.1)
    with caplog.at_level(logging.WARNING):
        record_backup(path, archive(path, "ours"), 2.0)
    assert "another process holds it" in caplog.text
    assert recorded(path) == {"ours"}


def test_no_backup_that_two_processes_record_is_lost(path: Path) -> None:
    count = sentinel.BACKUPS_MAX // 2
    files = [[archive(path, f"{name}{number}") for number in range(count)] for name in "ab"]
    processes = [start(BACKUPS, path, *some) for some in files]
    for process in processes:
        go(process)
    for process in processes:
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert recorded(path) == {file.name for some in files for file in some}
