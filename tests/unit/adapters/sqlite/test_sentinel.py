"""The sentinel beside the database: lost, replaced, cut and damaged files are recognised and not written."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace
from tests.damaged_files import SILENT_DAMAGE, damage_index, damage_table, lose_index

from everthread.adapters.sqlite import maintenance
from everthread.adapters.sqlite.connection import SqliteDatabase, connect
from everthread.adapters.sqlite.migrate import known_migrations, migrate
from everthread.adapters.sqlite.sentinel import (
    find_damage,
    newest_backup,
    read_sentinel,
    record_backup,
    recreate_sentinel,
    restore_hint,
    sentinel_path,
    write_sentinel,
)
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.errors import StoreBusy, StoreCorrupt, StoreError
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.store.derived_text import WRITTEN
from everthread.store.incidents import Incident
from everthread.store.search_index import OCTETS_PER_BATCH
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.contracts.store.fixtures import KEY, StoreConversation

INCIDENT = Incident(1.0, "test", None, "seen")
NOTE = NoteVersion("n", 1, "me", NoteTarget.USER, NoteAction.ADD, "keeps bees", "s", None, 1.0)


async def open_and_close(path: Path) -> None:
    await (await SqliteStore.open(path)).aclose()


def reopen(path: Path) -> None:
    asyncio.run(open_and_close(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with some content, closed."""

    async def fill() -> None:
        store = await SqliteStore.open(tmp_path / "home" / "everthread.db")
        for number in range(40):
            await StoreConversation(store, f"p{number}").say(f"{number} " + "words " * 200, KEY)
        await store.write(lambda uow: uow.incidents.add(INCIDENT))
        await store.aclose()

    asyncio.run(fill())
    return tmp_path / "home" / "everthread.db"


def backed_up(path: Path, name: str, at: float) -> Path:
    archive = path.parent.parent / name
    archive.write_bytes(f"the backup {name}".encode())
    record_backup(path, archive, at)
    return archive


def test_an_opened_database_gets_a_private_sentinel(path: Path) -> None:
    known = read_sentinel(path)
    assert known is not None
    assert (len(known.database), known.bytes, known.damage) == (32, path.stat().st_size, "")
    assert sentinel_path(path).stat().st_mode & 0o777 == 0o600
    sentinel_path(path).unlink()
    reopen(path)
    assert read_sentinel(path) == known


@pytest.mark.parametrize("lose", ["truncate", "unlink"])
def test_a_lost_database_is_not_taken_for_a_new_one(path: Path, lose: str) -> None:
    backed_up(path, "old.tar.gz", 1.0)
    newest = backed_up(path, "new.tar.gz", 2.0)
    wal = path.with_name("everthread.db-wal")
    wal.write_bytes(b"what was not checkpointed")
    if lose == "truncate":
        path.write_bytes(b"")
    else:
        path.unlink()
    for attempt in (reopen, lambda path: maintenance.examine(path, 5.0)):
        with pytest.raises(StoreCorrupt, match="but it had") as caught:
            attempt(path)
        assert f"everthread restore {newest} --force" in str(caught.value)
    assert wal.read_bytes() == b"what was not checkpointed"
    assert not path.exists() or path.stat().st_size == 0
    sentinel_path(path).unlink()
    wal.unlink()
    reopen(path)
    assert path.stat().st_size


def test_another_database_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    reopen(tmp_path / "other.db")
    shutil.copyfile(tmp_path / "other.db", path)
    with pytest.raises(StoreCorrupt, match="different database than before"):
        reopen(path)


def test_a_restored_database_of_an_older_schema_gets_its_sentinel_when_it_is_opened(path: Path) -> None:
    old = read_sentinel(path)
    assert old is not None
    path.unlink()
    with closing(connect(str(path))) as connection:
        migrate(connection, str(path), known_migrations()[:14])
    recreate_sentinel(path, ())
    assert read_sentinel(path) is None
    reopen(path)
    known = read_sentinel(path)
    assert known is not None
    assert known.database != old.database
    reopen(path)


def test_a_database_cut_short_is_refused(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2 // 4096 * 4096)
    with pytest.raises(StoreCorrupt, match=r"everthread restore FILE"):
        reopen(path)


def test_a_database_that_has_shrunk_and_is_sound_is_accepted(path: Path) -> None:
    known = read_sentinel(path)
    assert known is not None
    write_sentinel(path, replace(known, bytes=10 * known.bytes))
    reopen(path)
    assert read_sentinel(path) == known


def test_only_an_unchanged_backup_is_named(path: Path) -> None:
    assert newest_backup(path) is None
    old = backed_up(path, "old.tar.gz", 1.0)
    new = backed_up(path, "new.tar.gz", 2.0)
    assert f"everthread restore {new} --force" in restore_hint(path)
    content = bytearray(new.read_bytes())
    content[0] ^= 1
    new.write_bytes(content)
    assert f"everthread restore {old} --force" in restore_hint(path)
    old.unlink()
    assert "No known backup is intact" in restore_hint(path)


async def test_the_first_damage_stops_all_writes_and_is_reported_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backup = backed_up(path, "good.tar.gz", 1.0)
    damage_table(path, "note_versions")
    caplog.set_level(logging.WARNING)
    store = await SqliteStore.open(path)
    assert store.damage == ""
    await store.write(lambda uow: uow.incidents.add(INCIDENT))
    with pytest.raises(StoreCorrupt, match="Nothing more is written"):
        await store.write(lambda uow: uow.derived.put_note(NOTE, WRITTEN))
    assert f"everthread restore {backup} --force" in store.damage
    for write in (store.write, store.write_inline):
        # The table of incidents is intact, and is not written either.
        with pytest.raises(StoreCorrupt, match="Nothing more is written"):
            await write(lambda uow: uow.incidents.add(INCIDENT))
    assert len(await store.read(lambda uow: uow.incidents.newest(10))) == 2, "intact parts can be read"
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    await store.aclose()


async def test_known_damage_stops_the_writes_of_the_next_process(path: Path) -> None:
    damage_table(path, "note_versions")
    store = await SqliteStore.open(path)
    with pytest.raises(StoreCorrupt):
        await store.write(lambda uow: uow.derived.put_note(NOTE, WRITTEN))
    await store.aclose()
    again = await SqliteStore.open(path)
    assert "Nothing more is written" in again.damage
    with pytest.raises(StoreCorrupt):
        await again.write(lambda uow: uow.incidents.add(INCIDENT))
    assert await again.read(lambda uow: uow.incidents.newest(10))
    await again.aclose()


async def test_damage_that_is_not_found_again_is_cleared(path: Path) -> None:
    known = read_sentinel(path)
    assert known is not None
    write_sentinel(path, replace(known, damage="a read error of the disk"))
    store = await SqliteStore.open(path)
    assert store.damage == ""
    await store.write(lambda uow: uow.incidents.add(INCIDENT))
    await store.aclose()
    assert read_sentinel(path) == known


def test_a_file_that_is_no_database_any_more_is_refused_with_the_backup(path: Path) -> None:
    backup = backed_up(path, "good.tar.gz", 1.0)
    path.write_bytes(b"\xaa" * path.stat().st_size)
    with pytest.raises(StoreCorrupt, match="damaged or not an Everthread database") as caught:
        reopen(path)
    assert f"everthread restore {backup} --force" in str(caught.value)


async def test_a_damaged_search_index_stops_no_writes_and_is_rebuilt(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = read_sentinel(path)
    store = await SqliteStore.open(path)
    conversation = StoreConversation(store)
    found = await conversation.search("words", limit=100)
    assert len(found) == 40
    damage_index(path)
    with pytest.raises(StoreError, match="search index is damaged") as caught:
        await conversation.search("words", limit=100)
    assert not isinstance(caught.value, StoreCorrupt)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert store.damage == ""
    await conversation.say("more words", KEY)
    assert len(await conversation.search("words", limit=100)) == 41
    await store.aclose()
    assert read_sentinel(path) == known


async def test_a_search_index_found_damaged_is_rebuilt_before_the_process_ends(path: Path) -> None:
    await (await filled_index(path)).aclose()
    damage_index(path)
    for is_rebuilt in (False, True):
        store = await SqliteStore.open(path)
        assert store.damage == ""
        if is_rebuilt:
            assert len(await StoreConversation(store).search("words", limit=100)) == 40
        else:
            with pytest.raises(StoreError, match="will be rebuilt"):
                await StoreConversation(store).search("words", limit=100)
        await store.aclose()


async def test_a_write_that_meets_a_damaged_search_index_succeeds_when_repeated(path: Path) -> None:
    store = await filled_index(path)
    # Another segment of the index, to be merged with the first.
    await StoreConversation(store).say("more words", KEY)
    await store.index()
    damage_index(path)
    with pytest.raises(StoreError, match="will be rebuilt"):
        await store.write(lambda uow: uow.search.purge(begin=True))
    await store.write(lambda uow: uow.search.purge(begin=True))
    assert len(await StoreConversation(store).search("words", limit=100)) == 41
    await store.aclose()


async def test_the_search_index_is_rebuilt_once_in_a_process(path: Path) -> None:
    store = await filled_index(path)
    conversation = StoreConversation(store)
    for _ in range(2):
        damage_index(path)
        with pytest.raises(StoreError, match="will be rebuilt"):
            await conversation.search("words")
        await store.index()
    with pytest.raises(StoreError, match="will be rebuilt"):
        await conversation.search("words")
    await store.aclose()


async def test_a_database_with_a_damaged_search_index_can_be_checked_and_backed_up(path: Path) -> None:
    await (await filled_index(path)).aclose()
    damage_index(path)
    assert maintenance.examine(path, 5.0).damage == ""
    maintenance.copy_file(str(path), path.with_name("copy.db"), lambda done, pages: None)
    assert maintenance.inspect(path.with_name("copy.db")).turns == 40
    damage_table(path, "note_versions")
    assert maintenance.examine(path, 5.0).damage
    with closing(connect(str(path))) as connection:
        assert find_damage(connection)


@pytest.mark.parametrize("damage", SILENT_DAMAGE.values(), ids=SILENT_DAMAGE)
@pytest.mark.parametrize("how", ["search", "recall"])
async def test_a_search_that_finds_nothing_in_a_lost_index_has_it_rebuilt(path: Path, damage: str, how: str) -> None:
    store = await filled_index(path)
    conversation = StoreConversation(store)
    find = conversation.search if how == "search" else conversation.recall
    assert len(await find("words", limit=3)) == 3
    assert await find("unheard", limit=3) == [], "nothing found is no damage"
    lose_index(path, damage)
    with pytest.raises(StoreError, match="search index is damaged and will be rebuilt"):
        await find("words", limit=3)
    assert len(await find("words", limit=3)) == 3
    await store.aclose()


async def test_a_damaged_search_index_is_rebuilt_without_another_write_or_search(path: Path) -> None:
    store = await filled_index(path)
    damage_index(path)
    with pytest.raises(StoreError, match="will be rebuilt"):
        await StoreConversation(store).search("words")

    with closing(connect(str(path))) as other:
        unit, is_damaged = UnitOfWork(SqliteDatabase(other)), True
        deadline = time.monotonic() + 10
        while is_damaged:
            assert time.monotonic() < deadline, "not rebuilt"
            await asyncio.sleep(0.01)
            with suppress(apsw.CorruptError):
                is_damaged = bool(unit.search.find_damage(40)) or unit.search.count() < 40
    await store.aclose()


async def test_a_rebuild_that_another_process_blocks_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.adapters.sqlite.writer.REBUILD_RETRY_S", 0.05)
    await (await filled_index(path)).aclose()
    store = await SqliteStore.open(path, busy_s_max=0.05)
    damage_index(path)
    with closing(connect(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="will be rebuilt"):
            await StoreConversation(store).search("words")
        # The rebuild is tried before the second of them at the latest.
        for _ in range(2):
            with pytest.raises(StoreBusy):
                await store.write(lambda uow: uow.incidents.add(INCIDENT))
        other.execute("ROLLBACK")
    assert len(await StoreConversation(store).search("words", limit=100)) == 40
    await store.aclose()


async def test_writes_do_not_wait_for_the_whole_index(path: Path) -> None:
    store = await SqliteStore.open(path)
    for number in range(10):
        await StoreConversation(store, f"long{number}").say("words " * (OCTETS_PER_BATCH // 12), KEY)
    await store.write(lambda uow: uow.search.clear())
    order: list[str] = []

    async def index() -> None:
        await store.index()
        order.append("indexed")

    async def write() -> None:
        await store.write(lambda uow: uow.incidents.add(INCIDENT))
        order.append("written")

    await asyncio.gather(index(), write())
    assert order == ["written", "indexed"]
    assert await store.read(lambda uow: uow.search.count()) == 50
    await store.aclose()


@pytest.mark.parametrize("damage", SILENT_DAMAGE.values(), ids=SILENT_DAMAGE)
async def test_a_check_of_the_file_finds_a_lost_search_index(path: Path, damage: str) -> None:
    await (await filled_index(path)).aclose()
    assert maintenance.examine(path, 5.0).index_damage == ""
    lose_index(path, damage)
    found = maintenance.examine(path, 5.0)
    assert (found.damage, found.whole) == ("", True)
    assert "is not in the search index" in found.index_damage


async def test_a_check_of_the_file_finds_damaged_pages_of_the_search_index(path: Path) -> None:
    await (await filled_index(path)).aclose()
    damage_index(path)
    assert "fts5" in maintenance.examine(path, 5.0).index_damage


async def filled_index(path: Path) -> SqliteStore:
    store = await SqliteStore.open(path)
    await store.index()
    return store
