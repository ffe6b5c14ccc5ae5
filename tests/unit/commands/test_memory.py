"""`/memory`: notes added, listed, removed and restored."""

from __future__ import annotations

from pathlib import Path

from tests.commands import CommandFixture
from tests.runtime import CLI, ME

from everthread.domain.model import NoteAction, NoteTarget
from everthread.lifecycle import ForgetSession, NoteChange


async def test_notes_are_added_shown_and_removed(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        assert "There are no notes yet" in (await console.order("/memory")).text
        assert "Noted" in (await console.order("/memory add likes green tea")).text
        assert "Noted" in (await console.order("/memory ADD lives in Lisbon")).text
        said = (await console.order("/memory")).text
        assert "MEMORY.md: 30 of 8000 characters (0 % full)" in said
        assert (tmp_path / "notes" / ME / "MEMORY.md").read_text() == "likes green tea\n§\nlives in Lisbon\n"
        assert "Removed" in (await console.order("/memory remove GREEN tea")).text
        note_id = (await console.order("/memory")).text.splitlines()[1].split()[0]
        assert "Removed" in (await console.order(f"/memory remove {note_id}")).text
        assert "There are no notes yet" in (await console.order("/memory")).text


async def test_an_edited_file_is_read_before_notes_are_shown(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.order("/memory add one")
        (tmp_path / "notes" / ME / "USER.md").write_text("is called Ana\n")
        said = (await console.order("/memory")).text
        assert "USER.md: 13 of 4000" in said
        assert "is called Ana" in said


async def test_a_note_is_stored_even_if_its_file_cannot_be_written(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        (tmp_path / "notes").write_text("in the way of a folder")
        said = await console.order("/memory add likes green tea")
        assert said.ok
        assert "were not updated" in said.text
        said = await console.order("/memory")
        assert "likes green tea" in said.text
        assert "were not updated" in said.text


async def test_unknown_and_ambiguous_notes_are_not_removed(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.order("/memory add likes green tea")
        await console.order("/memory add likes black tea")
        await console.refuses("/memory remove coffee", "no note", "/memory")
        await console.refuses("/memory remove likes", "matches 2 notes")
        await console.refuses("/memory remove", "Usage")
        await console.refuses("/memory add", "Usage")
        await console.refuses("/memory frobnicate", "Usage")
        await console.refuses(f"/memory add {'x' * 20_001}", "at most 20000")
        assert "likes green tea" in (await console.order("/memory remove likes green tea")).text


async def test_every_change_of_a_note_is_logged_with_its_author_and_can_be_undone(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.refuses("/memory undo", "nothing to undo")
        assert "no note was ever written" in (await console.order("/memory log")).text
        session_id = await console.titled("Tea")
        await console.order("/memory add likes green tea")
        ref = await console.lifecycle.current(CLI)
        [note] = await console.store.read(lambda uow: uow.notes.current(ME, NoteTarget.MEMORY))
        turn = await console.store.read(lambda uow: uow.turns.get(session_id, 1))
        assert turn is not None
        by_agent = NoteChange(NoteAction.REPLACE, NoteTarget.MEMORY, "likes black tea", note.note_id, turn.turn_id)
        await console.lifecycle.write_note(by_agent, owner=ME, ref=ref)
        newest, oldest = (await console.order("/memory log")).text.splitlines()[:2]
        assert newest.startswith(f"{note.note_id}:2 ")
        assert newest.endswith('replace  "likes black tea", by the agent, in turn 1 of "Tea"')
        assert oldest.endswith('add      "likes green tea", by you, in "Tea"')

        file = tmp_path / "notes" / ME / "MEMORY.md"
        assert 'Restored the previous text: "likes green tea"' in (await console.order("/memory undo")).text
        assert file.read_text() == "likes green tea\n"
        assert 'Restored the previous text: "likes black tea"' in (await console.order("/memory undo")).text
        assert file.read_text() == "likes black tea\n"
        await console.refuses(f"/memory undo {note.note_id}:2", "changed again", f"{note.note_id}:4")
        await console.refuses(f"/memory undo {note.note_id}:9", "no change")
        await console.refuses("/memory undo nonsense", "no change")
        await console.refuses(f"/memory undo {note.note_id}:4", "no change", owner="bob")
        await console.refuses("/memory log now", "Usage")


async def test_a_removed_note_is_restored_with_its_id_and_deleted_with_its_session(
    tmp_path: Path,
) -> None:
    async with CommandFixture(tmp_path) as console:
        session_id = await console.titled("Tea")
        await console.order("/memory add likes green tea")
        [note] = await console.store.read(lambda uow: uow.notes.current(ME, NoteTarget.MEMORY))
        await console.order("/memory add lives in Lisbon")
        await console.order("/new")
        await console.order("/memory remove green")
        assert 'Restored: "likes green tea"' in (await console.order(f"/memory undo {note.note_id[:26]}")).text
        first, _ = await console.store.read(lambda uow: uow.notes.current(ME, NoteTarget.MEMORY))
        assert (first.note_id, first.version, first.session_id) == (note.note_id, 3, session_id)
        assert 'Removed again: "likes green tea"' in (await console.order("/memory undo")).text
        assert 'Restored: "likes green tea"' in (await console.order("/memory undo")).text
        await console.lifecycle.forget(ForgetSession(session_id), owner=ME)
        assert "green" not in (await console.order("/memory")).text
        assert "green" not in (await console.order("/memory log")).text
        await console.refuses(f"/memory undo {note.note_id}", "forgotten")
