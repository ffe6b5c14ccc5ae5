"""The log file: whole lines, no secrets, not too large, and never a reason for anything to fail."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.config.schema import Settings, Variables
from everthread.lifecycle.home_files import HomeFiles
from everthread.log_erasure import LineFilter, list_forgotten
from everthread.log_file import HIDDEN, ROTATED_MAX, LogFile, log_path, log_to_file, secrets_of


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.Logger("everthread.tests", logging.INFO)
    yield logger
    for handler in logger.handlers:
        handler.close()


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def test_a_line_has_the_time_the_level_and_the_ids(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "logs" / "everthread.log"
    logger.addHandler(LogFile(file))
    logger.debug("not this")
    logger.info("turn %s", "committed", extra={"session": "01ABC", "turn": 3, "turn_id": "01DEF"})
    logger.info("sent", extra={"platform": "post", "key": "agent:main:post:dm:1", "token": "never"})
    logger.warning("two\nlines \udcff")
    first, sent, second = entries(file)
    assert (sent["platform"], sent["key"], "token" in sent) == ("post", "agent:main:post:dm:1", False)
    assert first["at"].endswith("Z")
    assert (first["level"], first["logger"], first["text"]) == ("info", "everthread.tests", "turn committed")
    assert (first["session"], first["turn"], first["turn_id"], first["pid"]) == ("01ABC", 3, "01DEF", os.getpid())
    assert second["text"] == "two\nlines ?"
    assert "session" not in second
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_info_lines_are_written_after_a_short_delay(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    handler = LogFile(file)
    logger.addHandler(handler)
    logger.info("by itself")
    deadline = time.monotonic() + 10
    while not file.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    logger.info("before the end")
    handler.close()
    handler.close()
    logger.info("after the end")
    assert [entry["text"] for entry in entries(file)] == ["by itself", "before the end"]


def test_a_traceback_has_frames_and_types_but_no_messages(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    logger.addHandler(LogFile(file))
    try:
        try:
            raise KeyError("mango")
        except KeyError as error:
            raise ValueError("papaya") from error
    except ValueError:
        logger.exception("failed")
    [entry] = entries(file)
    assert "mango" not in file.read_text()
    assert "papaya" not in file.read_text()
    assert entry["error"].endswith("\nValueError")
    assert "KeyError\n\nThen:" in entry["error"]
    assert f'File "{__file__}", line ' in entry["error"]
    assert entry["text"] == f"failed (reference {entry['reference']})"


def test_no_secret_is_written(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    variables = Variables(
        {"OPENAI_API_KEY": "from-environ", "MY_TOKEN": "tok+en(1)", "HOME": "/home/ana", "X_KEY": "abc"},
        {"PLAIN": "from-dot-env", "LONGER": "from-dot-env-and-more"},
    )
    hidden = secrets_of(Settings(tmp_path, variables=variables))
    logger.addHandler(LogFile(file, hidden=hidden))
    shaped = "sk-0123456789abcdefghijklmnop"
    logger.info("%s from-environ tok+en(1) %s from-dot-env-and-more abc /home/ana", "from-dot-env", shaped)
    logger.info("Authorization: Bearer eyJhbGciOi.J9 and so on")
    try:
        raise RuntimeError("from-environ")
    except RuntimeError:
        logger.exception("failed")
    text = file.read_text()
    for secret in ("from-environ", "tok+en", shaped, "from-dot-env", "and-more", "eyJhbGciOi"):
        assert secret not in text
    first, second, _ = entries(file)
    assert first["text"] == f"{HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} abc /home/ana"
    assert second["text"] == f"Authorization: Bearer {HIDDEN} and so on"


def test_a_full_file_is_rotated_and_few_are_kept(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    logger.addHandler(LogFile(file, bytes_max=2_000))
    for number in range(200):
        logger.warning("line %d", number)
    names = sorted(path.name for path in tmp_path.glob("everthread.log*"))
    assert names == ["everthread.log", *(f"everthread.log.{number}" for number in range(1, ROTATED_MAX + 1))]
    kept = [entry["text"] for path in reversed(names) for entry in entries(tmp_path / path)]
    assert kept == [f"line {number}" for number in range(200 - len(kept), 200)], "in order, and nothing between"
    for name in names:
        assert (tmp_path / name).stat().st_size < 2_400
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_second_process_follows_the_rotation_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    first, second = (logging.Logger(f"everthread.{name}", logging.INFO) for name in "ab")
    handlers = [LogFile(file, bytes_max=500) for _ in range(2)]
    first.addHandler(handlers[0])
    second.addHandler(handlers[1])
    while not (tmp_path / "everthread.log.1").exists():
        first.warning("on and on")
    second.warning("still where it was")
    second.warning("in the new file")
    assert [entry["text"] for entry in entries(file)] == ["in the new file"]
    assert not (tmp_path / "everthread.log.2").exists()
    for handler in handlers:
        handler.close()


def test_several_processes_writing_at_once_lose_and_break_no_line(tmp_path: Path) -> None:
    file = tmp_path / "everthread.log"
    # One that turns the file over, and others that must notice it.
    handlers = [LogFile(file, bytes_max=60_000) for _ in range(4)]

    def write(who: int) -> None:
        logger = logging.Logger(f"everthread.w{who}", logging.INFO)
        logger.addHandler(handlers[who])
        for number in range(400):
            logger.warning("%d %d", who, number)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [entry["text"] for path in tmp_path.glob("everthread.log*") for entry in entries(path)]
    assert sorted(found) == sorted(f"{who} {number}" for who in range(4) for number in range(400))
    for handler in handlers:
        handler.close()


def test_logging_continues_after_lines_were_removed(logger: logging.Logger, tmp_path: Path) -> None:
    file = log_path(tmp_path)
    logger.addHandler(LogFile(file, bytes_max=300))
    for word in ("mango", "mango", "mango", "mango"):
        logger.warning(word)
    rotated = list(file.parent.glob("everthread.log.*"))
    assert rotated
    HomeFiles(tmp_path, "me").erase("me", ("mango",), LineFilter())
    logger.warning("papaya")
    found = [entry["text"] for path in file.parent.glob("everthread.log*") for entry in entries(path)]
    assert found == ["papaya"]


def test_an_unwritable_log_raises_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert log_to_file(Settings(tmp_path / "file")) is None
    logger = logging.getLogger("everthread")
    before = (logger.level, list(logger.handlers))
    # The test runner listens as well, and does mind.
    logger.propagate = False
    handler = log_to_file(Settings(tmp_path / "home"))
    try:
        assert handler is not None
        assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
        shutil.rmtree(tmp_path / "home")
        for number in range(2_000):
            logging.getLogger("everthread.tests").info("%d %s", number, "x" * 100)
        logging.getLogger("everthread.tests").info("%d", "no number")
    finally:
        if handler is not None:
            handler.leave()
        logger.setLevel(before[0])
        logger.propagate = True
    assert logger.handlers == before[1]
    assert capfd.readouterr().err == ""
    assert not log_path(tmp_path / "home").exists()


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_fields_and_arguments_of_other_libraries_never_lose_a_line_or_raise(tmp_path: Path) -> None:
    library = logging.Logger("vendor.client", logging.INFO)
    handler = LogFile(tmp_path / "everthread.log", hidden=["hunter2"])
    library.addHandler(handler)
    list_forgotten(tmp_path, LineFilter(frozenset({"01MINE"}), "anna"))
    for value in (object(), Unprintable(), ["a"], 2.5):
        library.error("boom", extra={"session": value, "owner": value, "status": value})
    library.error("boom", extra={"session": "01THEIRS", "status": 503, "key": "hunter2" + "x" * 1000})
    library.error("boom %d", "no number")
    library.error("boom %s", Unprintable())
    library.error("boom", extra={"session": "\udcff"})
    library.error("boom", extra={"session": "01MINE", "owner": Unprintable()})
    found = entries(tmp_path / "everthread.log")
    assert len(found) == 8, "all but that of the forgotten session"
    assert [("session" in entry, "owner" in entry, "status" in entry) for entry in found[:4]] == [(False,) * 3] * 4
    assert all(entry["text"].startswith("message of vendor.client (reference ") for entry in found[:5])
    assert (found[4]["session"], found[4]["status"]) == ("01THEIRS", 503)
    assert found[4]["key"].startswith(HIDDEN)
    assert len(found[4]["key"]) <= 200
    for entry in found[5:7]:
        assert entry["text"] == "a record that can't be formatted"
        assert (entry["level"], entry["logger"], entry["v"]) == ("error", "vendor.client", 2)
    handler.close()
