"""A consistent copy of a database that another process writes to, with no file left beside it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from everthread.domain.errors import StoreBusy
from everthread.hermes_import import snapshot
from everthread.hermes_import.snapshot import copy_snapshot

ACCOUNTS = 2_000


def made(path: Path, mode: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA journal_mode = {mode}")
    database.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, holds INTEGER, filler TEXT)")
    database.execute("PRAGMA synchronous = OFF")
    rows = [(number, 100, "x" * 500) for number in range(ACCOUNTS)]
    database.execute("BEGIN")
    database.executemany("INSERT INTO accounts VALUES (?, ?, ?)", rows)
    database.execute("COMMIT")
    return database


def look(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        file.name: (file.stat().st_ino, file.stat().st_mtime_ns, file.read_bytes()) for file in path.parent.iterdir()
    }


def money(copy: Path) -> int:
    database = sqlite3.connect(copy)
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return database.execute("SELECT SUM(holds) FROM accounts").fetchone()[0]
    finally:
        database.close()


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_copy_has_all_commits_and_changes_no_other_file(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "theirs" / "state.db"
    path.parent.mkdir()
    database = made(path, mode)
    database.execute("UPDATE accounts SET holds = 7 WHERE id = 1")
    before = look(path)
    with copy_snapshot(path) as copy:
        assert money(copy) == ACCOUNTS * 100 - 93
        assert copy.parent.stat().st_mode & 0o077 == 0
    assert look(path) == before
    assert not copy.parent.exists()
    database.close()


def test_a_copy_made_during_writes_is_consistent(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = made(path, "WAL")
    done = threading.Event()

    def move_money() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            one, other = turn * 7 % ACCOUNTS, turn * 13 % ACCOUNTS
            database.execute("BEGIN")
            database.execute("UPDATE accounts SET holds = holds - 1 WHERE id = ?", (one,))
            database.execute("UPDATE accounts SET holds = holds + 1 WHERE id = ?", (other,))
            database.execute("COMMIT")
            if turn % 50 == 0:
                database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # Somebody who talks to Hermes is not so quick either.
            done.wait(0.0002)

    writing = threading.Thread(target=move_money)
    writing.start()
    try:
        for _ in range(25):
            with copy_snapshot(path) as copy:
                assert money(copy) == ACCOUNTS * 100
    finally:
        done.set()
        writing.join()
        database.close()


@pytest.mark.parametrize("again", [True, False])
def test_an_inconsistent_copy_is_retried_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    path = tmp_path / "state.db"
    database = made(path, "WAL")
    tries = 0

    def meddle(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        nonlocal tries
        real(source, target, advance)
        if source == path:
            tries += 1
            if again and tries > 1:
                return
            # What was written ahead is put into the file, and begun anew, behind the copy's back.
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("UPDATE accounts SET holds = holds + 1")

    real = snapshot._copy  # noqa: SLF001 - to be there in the middle of it
    monkeypatch.setattr(snapshot, "_copy", meddle)
    monkeypatch.setattr(snapshot, "_PAUSE_S", 0.0)
    if again:
        with copy_snapshot(path) as copy:
            assert money(copy) == ACCOUNTS * 101
        assert tries == 2
    else:
        with pytest.raises(StoreBusy, match="try again"), copy_snapshot(path):
            pass
    database.close()


def test_a_checkpoint_between_two_copies_makes_no_inconsistent_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    database = made(path, "WAL")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("UPDATE accounts SET holds = holds + 1 WHERE id < ?", (ACCOUNTS // 2,))
    meddled = False

    def meddle(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        nonlocal meddled
        real(source, target, advance)
        if not meddled:
            meddled = True
            database.execute("UPDATE accounts SET holds = holds + 1")
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    real = snapshot._copy  # noqa: SLF001 - to be there in the middle of it
    monkeypatch.setattr(snapshot, "_copy", meddle)
    with copy_snapshot(path) as copy:
        assert money(copy) in (ACCOUNTS * 100 + ACCOUNTS // 2, ACCOUNTS * 101 + ACCOUNTS // 2)
    database.close()
