"""The check of a store's rows against each other: quiet on a sound one, and loud about each thing that is broken."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.simulator.store_consistency import inconsistencies

from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.model import NoteAction, NoteTarget
from everthread.lifecycle import NoteChange
from everthread.testing.contracts.store.fixtures import KEY, OTHER_KEY, StoreConversation


async def _live(path: Path) -> None:
    async with aclosing(await SqliteStore.open(path)) as store:
        talk = StoreConversation(store)
        await store.write(lambda uow: uow.cursors.register("p"))
        await talk.new(KEY, title="Bees")
        for number in range(3):
            await talk.say(f"hive {number}", KEY, answer="noted")
        await talk.rewind(KEY)
        await talk.branch(KEY)
        await talk.say("in the branch", KEY)
        await talk.compress(KEY, "so far", 2)
        claim = await talk.begin("running", OTHER_KEY, "bob")
        await talk.lifecycle.start_tool(claim, "c", "look", "{}")
        await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "keeps bees"), owner="ann")
        await store.index()

        def deliver(uow: object) -> None:
            while uow.cursors.discover("p", 5.0, 100):  # pyright: ignore
                pass

        await store.write(deliver)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "everthread.db"
    asyncio.run(_live(path))
    return path


def found_after(sound: Path, tmp_path: Path, sql: str) -> list[str]:
    path = tmp_path / "everthread.db"
    shutil.copy(sound, path)
    database = connect(str(path))
    try:
        database.execute(sql)
        return inconsistencies(database)
    finally:
        database.close()


def test_a_consistent_store_has_no_problems(sound: Path, tmp_path: Path) -> None:
    assert found_after(sound, tmp_path, "SELECT 1") == []


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("UPDATE bindings SET session_id = 'gone' WHERE owner = 'ann'", "on no session"),
        ("UPDATE bindings SET owner = 'eve' WHERE owner = 'ann'", "somebody else's"),
        ("UPDATE bindings SET generation = 99 WHERE owner = 'ann'", "another generation"),
        ("UPDATE turns SET session_id = 'gone' WHERE number = 1", "no session"),
        ("UPDATE sessions SET last_turn = 0 WHERE title = 'Bees'", "newer than its session"),
        ("UPDATE sessions SET base_turn = 1, floor = 0 WHERE title = 'Bees'", "where its parent's do"),
        ("UPDATE turns SET owner = 'eve' WHERE number = 1", "another than its session"),
        ("INSERT INTO messages VALUES (4096000000, 'ann', 'user', 'stray', NULL)", "no turn"),
        ("DELETE FROM log WHERE seq = 2", "gap"),
        ("DELETE FROM log WHERE seq = (SELECT MAX(seq) FROM log)", "gap"),
        ("UPDATE log SET session_id = 'gone' WHERE pos = 1", "log has no session"),
        ("UPDATE log SET number = 77 WHERE kind = 'turn' AND seq = 2", "tells of no turn"),
        ("UPDATE log SET kind = 'note', number = NULL WHERE kind = 'turn' AND seq = 2", "in no log"),
        ("UPDATE sessions SET closed_seq = 99 WHERE title = 'Bees'", "close covers"),
        ("UPDATE sessions SET base_seq = 99 WHERE parent_id IS NOT NULL", "child sees more"),
        ("DELETE FROM summaries", "summary is missing"),
        ("UPDATE hidden SET number = 99", "hidden that never was"),
        ("UPDATE cursors SET seq = 99", "beyond its log"),
        ("UPDATE providers SET scanned_pos = 9999", "beyond the logs"),
        ("UPDATE slots SET session_id = 'gone'", "slot is in no session"),
        ("UPDATE slots SET inbox_id = 999", "no message"),
        ("UPDATE slots SET turn_id = (SELECT turn_id FROM turns LIMIT 1)", "both running and committed"),
        ("UPDATE tool_rows SET turn_id = 'gone'", "tool belongs"),
        ("UPDATE indexed SET turn = 9999", "index is ahead"),
        ("DELETE FROM message_words WHERE rowid = (SELECT MIN(rowid) FROM message_words)", "no words"),
        ("DELETE FROM messages WHERE id = (SELECT MIN(id) FROM messages)", "of no message"),
        ("DELETE FROM note_versions", "newest version"),
        ("DROP INDEX sessions_title; UPDATE sessions SET title_fold = 'x', owner = 'ann'", "used twice"),
    ],
)
def test_each_inconsistency_is_reported(sound: Path, tmp_path: Path, sql: str, word: str) -> None:
    found = found_after(sound, tmp_path, sql)
    assert any(word in line for line in found), found
