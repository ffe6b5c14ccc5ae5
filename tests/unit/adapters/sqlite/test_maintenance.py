"""Copies of a store during concurrent writes: a consistent snapshot in a bounded number of steps."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from tests.simulator.store_consistency import inconsistencies

from everthread.adapters.sqlite import maintenance as files
from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.errors import StoreBusy, StoreCorrupt, StoreUnwritable
from everthread.testing.contracts.store.fixtures import KEY, StoreConversation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    async def live() -> None:
        store = await SqliteStore.open(tmp_path / "home" / "everthread.db")
        for number in range(40):
            await StoreConversation(store, f"p{number}").say(f"{number} " + "words " * 200, KEY)
        await store.aclose()

    asyncio.run(live())
    return tmp_path / "home" / "everthread.db"


def test_a_commit_at_every_step_does_not_restart_the_copy(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAGES_PER_STEP", 4)
    other = connect(str(path))
    before = files.inspect(path).turns
    seen: list[int] = []

    def commit(done: int, whole: int) -> None:
        seen.append(done)
        assert len(seen) <= whole, "the copy does not end"
        other.execute("UPDATE sessions SET active_at = active_at + 1")
        other.execute("INSERT INTO incidents (at, source, content) VALUES (1, 'test', ?)", ("x" * 5000,))

    files.copy_file(str(path), tmp_path / "copy.db", commit)
    assert len(seen) > 10
    assert seen == sorted(seen)
    copy = connect(str(tmp_path / "copy.db"))
    assert list(copy.execute("SELECT COUNT(*) FROM incidents")) == [(0,)], "the copy is a snapshot of its start"
    assert inconsistencies(copy) == []
    copy.close()
    other.close()
    assert before == 40


def test_a_copy_is_one_file_that_only_the_owner_can_read(path: Path, tmp_path: Path) -> None:
    other = connect(str(path))
    files.copy_file(str(path), tmp_path / "copy.db", lambda done, whole: None)
    other.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert files.inspect(tmp_path / "copy.db").turns == 40
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "home"]
    with pytest.raises(StoreUnwritable):
        files.copy_file(str(path), tmp_path / "copy.db", lambda done, whole: None)


def test_damage_is_found(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8192:9000] = b"\xff" * 808
    (tmp_path / "bad.db").write_bytes(content)
    with pytest.raises(StoreCorrupt):
        files.inspect(tmp_path / "bad.db")
    (tmp_path / "other.db").write_bytes(b"not a database at all, but long enough to be taken for one" * 100)
    with pytest.raises(StoreCorrupt):
        files.inspect(tmp_path / "other.db")


def test_exclusive_access_is_refused_while_another_connection_is_open(path: Path) -> None:
    with files.exclusive_access(path):
        pass
    other = connect(str(path))
    list(other.execute("SELECT COUNT(*) FROM sessions"))
    with pytest.raises(StoreBusy), files.exclusive_access(path):
        pass
    other.close()
    with files.exclusive_access(path), files.exclusive_access(path.with_name("none.db")):
        pass
