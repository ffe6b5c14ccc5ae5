"""Lines of forgotten sessions and persons leave the log, and no others, whatever other processes write meanwhile."""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from everthread import log_erasure, log_file
from everthread.lifecycle.home_files import HomeFiles
from everthread.log_erasure import LISTED_MAX, LineFilter, is_line_of, list_forgotten
from everthread.log_file import LogFile, log_path

MINE, THEIRS = "01MINE", "01THEIRS"

WRITER = """
import logging, sys
from pathlib import Path
from everthread.log_file import LogFile
home, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
logger = logging.Logger("everthread.tests", logging.INFO)
logger.addHandler(LogFile(home / "logs" / "everthread.log", bytes_max=250_000))
print("ready", flush=True)
for number in range(count):
    session = "01MINE" if number % 3 else "01THEIRS"
    level = logging.WARNING if number % 50 == 0 else logging.INFO
    logger.log(level, "%s %d", name, number, extra={"session": session, "owner": "guest" if number % 3 else "me"})
logging.shutdown()
for handler in logger.handlers:
    handler.close()
"""


def entries(home: Path) -> list[dict[str, Any]]:
    lines = [line for path in (home / "logs").glob("everthread.log*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.strip()]


def forget(home: Path, lines: LineFilter, *, owner: str = "me", texts: tuple[str, ...] = ()) -> None:
    files = HomeFiles(home, "me")
    if not texts:
        files.list_forgotten(lines)
    assert files.erase(owner, texts, lines) == []


@pytest.fixture
def log(tmp_path: Path) -> Any:
    logger = logging.Logger("everthread.tests", logging.INFO)
    handler = LogFile(log_path(tmp_path))
    logger.addHandler(handler)
    yield logger
    handler.close()


@pytest.mark.timeout(90)
def test_forgetting_beside_two_writing_processes_loses_no_other_line_and_leaves_none(tmp_path: Path) -> None:
    count = 3_000
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    names = ("first", "second")
    writers = [subprocess.Popen([*command, name, str(count)], stdout=subprocess.PIPE, text=True) for name in names]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    requests = 0
    lines = LineFilter(frozenset({MINE}))
    while any(writer.poll() is None for writer in writers) or not requests:
        forget(tmp_path, lines)
        requests += 1
        # From the first request on, no process appends a line of the session: not even one that it had in memory.
        assert [entry for entry in entries(tmp_path) if entry["session"] == MINE] == []
        time.sleep(0.01)
    for writer in writers:
        assert writer.wait() == 0
        assert writer.stdout is not None
        writer.stdout.close()
    left = entries(tmp_path)
    assert (tmp_path / "logs" / "everthread.log.1").exists(), "the log must have been rotated"
    expected = [f"{name} {number}" for name in names for number in range(0, count, 3)]
    assert sorted(entry["text"] for entry in left) == sorted(expected)
    assert b"01MINE" not in b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())


def test_only_the_lines_of_the_session_leave_all_files(log: logging.Logger, tmp_path: Path) -> None:
    for session in (MINE, THEIRS):
        log.warning("turn failed", extra={"session": session})
    log.warning("gateway started")
    current = log_path(tmp_path)
    (current.parent / "everthread.log.2").write_bytes(current.read_bytes())
    before = current.stat().st_size
    forget(tmp_path, LineFilter(frozenset({MINE})))
    assert [entry.get("session") for entry in entries(tmp_path)] == [THEIRS, None] * 2
    assert current.stat().st_size == before, "a file that others append to must not shrink"
    log.warning("late", extra={"session": MINE})
    log.warning("later", extra={"session": THEIRS})
    assert [entry["text"] for entry in entries(tmp_path)].count("late") == 0
    assert [entry["text"] for entry in entries(tmp_path)].count("later") == 1


def test_lines_that_wait_in_memory_are_dropped(log: logging.Logger, tmp_path: Path) -> None:
    log.info("waiting", extra={"session": MINE})
    log.info("waiting", extra={"owner": "anna"})
    log.info("waiting", extra={"key": "agent:main:post:dm:1"})
    forget(tmp_path, LineFilter(frozenset({MINE}), "anna", frozenset({"agent:main:post:dm:1"})))
    log.handlers[0].flush()
    assert entries(tmp_path) == []


def test_a_person_who_comes_back_is_logged_again(log: logging.Logger, tmp_path: Path) -> None:
    log.warning("before", extra={"owner": "anna"})
    forget(tmp_path, LineFilter(owner="anna"))
    time.sleep(0.01)
    log.warning("after", extra={"owner": "anna"})
    assert [entry["text"] for entry in entries(tmp_path)] == ["after"]


def test_lines_of_an_earlier_version_and_cut_lines_may_quote_anybody() -> None:
    assert is_line_of(b'{"at":"2026-11-01T00:00:00Z","text":"could not do: mango"}', LineFilter())
    assert is_line_of(b'{"at":"2026-11-01T00:00', LineFilter())
    assert is_line_of(b"Traceback (most recent call last):", LineFilter())
    assert is_line_of(b"\xff\xfe", LineFilter())
    assert not is_line_of(b'{"v":2,"text":"gateway started"}', LineFilter(owner="me"))


def test_words_of_a_guest_remove_lines_of_the_guest_only(log: logging.Logger, tmp_path: Path) -> None:
    for owner in ("me", "guest"):
        log.warning("turn failed", extra={"owner": owner})
    forget(tmp_path, LineFilter(owner="guest"), owner="guest", texts=("turn",))
    assert [entry["owner"] for entry in entries(tmp_path)] == ["me"]
    forget(tmp_path, LineFilter(owner="me"), texts=("other",))
    assert [entry["owner"] for entry in entries(tmp_path)] == ["me"]
    forget(tmp_path, LineFilter(owner="me"), texts=("turn",))
    assert entries(tmp_path) == []


def test_output_of_plugins_leaves_the_output_of_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    output = tmp_path / "logs" / "gateway.out"
    output.write_text("Serving HTTP on port 8080. Stop with Ctrl-C.\nprinted: my mango\nan unfinished mango")
    forget(tmp_path, LineFilter(frozenset({MINE})))
    assert output.read_text().split() == "Serving HTTP on port 8080. Stop with Ctrl-C.".split()


def test_a_guest_removes_only_what_names_them_from_output_and_lines_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    output, log = tmp_path / "logs" / "gateway.out", tmp_path / "logs" / "everthread.log"
    key, theirs = "agent:main:post:dm:1", "agent:main:post:dm:12"
    kept = ["Traceback (most recent call last):", "out of memory", f"lane {theirs} failed", "guest21 was refused"]
    gone = [f"session {MINE} failed", f"lane {key} failed", "guest2 was refused"]
    for file in (output, log):
        file.write_text("\n".join([*kept, *gone, ""]))
    for lines in (
        LineFilter(frozenset({MINE}), "guest2", frozenset({key})),
        LineFilter(frozenset({MINE}), named=frozenset({key, "guest2"})),
    ):
        forget(tmp_path, lines, owner="guest2")
        for file in (output, log):
            assert [line for line in file.read_text().splitlines() if line.strip()] == kept
            file.write_text("\n".join([*kept, *gone, ""]))
    forget(tmp_path, LineFilter(owner="guest2"), owner="guest2", texts=("memory",))
    assert "out of memory" in output.read_text()
    forget(tmp_path, LineFilter(frozenset({MINE})))
    assert (output.read_text().split(), log.read_text().split()) == ([], [])


def test_a_file_that_is_rotated_during_a_request_is_searched_too(
    log: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = log_path(tmp_path).parent
    log.warning("x", extra={"session": MINE})
    for number in (1, 2):
        (folder / f"everthread.log.{number}").write_bytes(log_path(tmp_path).read_bytes())
    list_files = HomeFiles._files  # noqa: SLF001 - between listing and reading nothing else can be placed
    rotated: list[bool] = []

    def rotate_after_listing(files: HomeFiles, entry: Any) -> Any:
        found = list(list_files(files, entry))
        if not rotated:
            rotated.append(True)
            for number in (2, 1, 0):
                path = folder / (f"everthread.log.{number}" if number else "everthread.log")
                path.replace(folder / f"everthread.log.{number + 1}")
        return found

    monkeypatch.setattr(HomeFiles, "_files", rotate_after_listing)
    forget(tmp_path, LineFilter(frozenset({MINE})))
    assert entries(tmp_path) == []


def test_the_list_of_forgotten_sessions_is_bounded_private_and_survives_damage(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / ".forgotten").write_text("{")
    for start in (0, LISTED_MAX):
        list_forgotten(folder, LineFilter(frozenset(str(number) for number in range(start, start + LISTED_MAX))))
    listed = json.loads((folder / ".forgotten").read_bytes())
    assert len(listed) == LISTED_MAX
    assert (folder / ".forgotten").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir() if os.fsdecode(path).endswith(".new")] == []


def test_a_home_without_logs_gets_none(tmp_path: Path) -> None:
    forget(tmp_path, LineFilter(frozenset({MINE})))
    assert list(tmp_path.iterdir()) == []


class Leaky:
    """An object that only a garbage collection ends, and that logs then, as tasks of asyncio do."""

    def __init__(self, logger: logging.Logger) -> None:
        self.me, self.logger = self, logger

    def __del__(self) -> None:
        self.logger.error("destroyed", extra={"session": THEIRS})


@pytest.mark.timeout(30)
def test_a_destructor_that_logs_while_its_thread_holds_the_lock_stops_nothing(
    log: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(*_: object) -> None:
        Leaky(log)
        # The youngest generation only: a whole collection takes long in a process that has run many tests.
        gc.collect(0)

    read_list, is_current = log_erasure._read_list, LogFile._is_current  # noqa: SLF001 - a collection happens anywhere
    monkeypatch.setattr(log_erasure, "_read_list", lambda folder: (collect(), read_list(folder))[1])
    monkeypatch.setattr(LogFile, "_is_current", lambda self: (collect(), is_current(self))[1])
    monkeypatch.setattr(log_file, "ROTATED_MAX", 200)
    handler = log.handlers[0]
    assert isinstance(handler, LogFile)
    handler._bytes_max = 200  # noqa: SLF001 - so that the file is rotated too

    def work() -> None:
        list_forgotten(tmp_path / "logs", LineFilter(frozenset({MINE})))
        log.warning("written beside it")
        log.warning("written beside it")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert [thread.is_alive() for thread in threads] == [False] * 3
    # None may be left for the end of the process, when nothing can be logged.
    gc.collect()
    handler.close()
    found = [entry["text"] for entry in entries(tmp_path)]
    assert found.count("written beside it") == 6
    assert "destroyed" in found


@pytest.mark.timeout(30)
def test_records_wait_for_another_process_that_holds_the_lock_and_the_caller_does_not(
    log: logging.Logger, tmp_path: Path
) -> None:
    lock = os.open(tmp_path / "logs" / ".lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    start = time.monotonic()
    for number in range(500):
        log.warning("line %d", number)
    assert time.monotonic() - start < 5
    assert entries(tmp_path) == []
    os.close(lock)
    deadline = time.monotonic() + 10
    while len(entries(tmp_path)) < 500 and time.monotonic() < deadline:
        time.sleep(0.05)
    log.warning("line 500")
    assert [entry["text"] for entry in entries(tmp_path)] == [f"line {number}" for number in range(501)]
