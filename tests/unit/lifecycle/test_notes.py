import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime import CLI, ME, AsyncDiary, CoreFixture

from everthread.domain.boundary import New
from everthread.domain.errors import BadInput, Erased, NotFound, TooLarge
from everthread.domain.model import (
    NoteAction,
    NoteTarget,
    NoteVersion,
    SessionRef,
)
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange
from everthread.lifecycle.notes import NOTE_CHARS_MAX
from everthread.memory.note_files import FILE_CHARS_MAX, SEPARATOR


class ScheduleFixture:
    """A core with a notes folder."""

    def __init__(self, core: CoreFixture, folder: Path) -> None:
        self.core = core
        self.folder = folder
        self.note_files = core.note_files(lambda owner: folder / owner)

    async def add(self, content: str, *, ref: SessionRef | None = None) -> NoteVersion:
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, content)
        return await self.core.lifecycle.write_note(change, owner=ME, ref=ref)

    async def replace(self, note_id: str, content: str) -> NoteVersion:
        change = NoteChange(NoteAction.REPLACE, NoteTarget.MEMORY, content, note_id)
        return await self.core.lifecycle.write_note(change, owner=ME)

    async def notes(self, target: NoteTarget = NoteTarget.MEMORY) -> list[str]:
        current = await self.core.store.read(lambda uow: uow.notes.current(ME, target))
        return [note.content for note in current]

    @property
    def file(self) -> Path:
        return self.folder / ME / "MEMORY.md"

    async def sync(self) -> int:
        return await self.note_files.sync(ME)

    def edit(self, change: Callable[[str], str]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(change(self.file.read_text() if self.file.exists() else ""))


async def test_a_note_reaches_providers_under_the_session_it_was_written_in(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        desk, ref = ScheduleFixture(core, tmp_path), (await core.turn(CLI, "hello")).ref
        note = await desk.add("likes tea", ref=ref)
        general = await desk.add("is called Kim")
        await core.cross(CLI, New())
        await core.settled()
    assert diary.book.told(ref.session_id) == ["switch", "hello", "likes tea", "end"]
    [call] = diary.book.of("on_memory_write", ref.session_id)
    assert (call.more["action"], call.more["target"], call.more["note_id"]) == ("add", "memory", note.note_id)
    assert diary.book.told(general.session_id) == ["is called Kim"]


async def test_a_note_written_after_its_session_was_left_gets_its_own_close(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "hello")).ref
        await core.cross(CLI, New())
        await ScheduleFixture(core, tmp_path).add("late", ref=ref)
        await core.settled()
    assert diary.book.told(ref.session_id) == ["switch", "hello", "end", "late", "end"]


async def test_every_version_of_a_note_is_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        note = await desk.add("likes tea")
        await desk.replace(note.note_id, "likes coffee")
        gone = NoteChange(NoteAction.REMOVE, NoteTarget.MEMORY, note_id=note.note_id)
        await core.lifecycle.write_note(gone, owner=ME)
        versions = await core.store.read(lambda uow: uow.notes.versions(note.note_id))
        assert [(v.version, v.action.value, v.content) for v in versions] == [
            (1, "add", "likes tea"),
            (2, "replace", "likes coffee"),
            (3, "remove", ""),
        ]
        assert await desk.notes() == []
        with pytest.raises(NotFound):
            await desk.replace(note.note_id, "back again")


@pytest.mark.parametrize(
    ("content", "error"), [("", BadInput), (" \n", BadInput), ("x" * (NOTE_CHARS_MAX + 1), TooLarge)]
)
async def test_an_empty_or_too_long_note_is_refused(tmp_path: Path, content: str, error: type[Exception]) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(error):
            await ScheduleFixture(core, tmp_path).add(content)


async def test_an_owner_can_not_write_to_another_owners_notes_or_sessions(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk, theirs = ScheduleFixture(core, tmp_path), (await core.turn(CLI, "hello", owner="you")).ref
        note = await core.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "theirs"), owner="you")
        with pytest.raises(NotFound):
            await desk.replace(note.note_id, "mine")
        with pytest.raises(NotFound):
            await desk.add("mine", ref=theirs)


async def test_a_forgotten_session_refuses_notes(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "hello")).ref
        await core.lifecycle.forget(ForgetSession(ref.session_id), owner=ME)
        with pytest.raises(Erased):
            await ScheduleFixture(core, tmp_path).add("late", ref=ref)


async def test_the_notes_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("one")
        await desk.add("two")
        assert await desk.sync() == 0
        assert desk.file.read_text() == f"one{SEPARATOR}two\n"
        assert desk.file.stat().st_mode & 0o777 == 0o600
        assert not list(desk.file.parent.glob("*.new"))


async def test_a_second_sync_changes_nothing(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("one")
        await desk.sync()
        written = desk.file.stat().st_mtime_ns
        assert await desk.sync() == 0
        assert desk.file.stat().st_mtime_ns == written


async def test_an_edit_is_imported_as_new_versions_and_reaches_providers(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        desk = ScheduleFixture(core, tmp_path)
        first = await desk.add("likes tea")
        await desk.add("stays")
        await desk.sync()
        desk.edit(lambda text: text.replace("likes tea", "likes coffee") + "§\nis new\n")
        assert await desk.sync() == 2
        assert await desk.notes() == ["likes coffee", "stays", "is new"]
        assert [v.content for v in await core.store.read(lambda uow: uow.notes.versions(first.note_id))] == [
            "likes tea",
            "likes coffee",
        ]
        await core.settled()
    assert [(call.more["action"], call.text) for call in diary.book.of("on_memory_write")] == [
        ("add", "likes tea"),
        ("add", "stays"),
        ("replace", "likes coffee"),
        ("add", "is new"),
    ]


async def test_an_entry_deleted_from_the_file_is_removed(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("one")
        await desk.add("two")
        await desk.sync()
        desk.edit(lambda text: "two\n")
        assert await desk.sync() == 1
        assert await desk.notes() == ["two"]


async def test_a_file_that_existed_before_the_store_is_imported(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        desk.edit(lambda text: "one\n§\ntwo")
        assert await desk.sync() == 2
        assert await desk.notes() == ["one", "two"]
        assert desk.file.read_text() == "one\n§\ntwo\n"


async def test_a_deleted_file_is_written_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("one")
        await desk.sync()
        desk.file.unlink()
        assert await desk.sync() == 0
        assert desk.file.read_text() == "one\n"


async def test_an_edit_of_the_file_keeps_notes_written_since_its_last_sync(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        changed = await desk.add("likes tea")
        await desk.add("stays")
        await desk.sync()
        await desk.add("written meanwhile")
        await desk.replace(changed.note_id, "likes coffee")
        desk.edit(lambda text: text + "§\nfrom the person\n")
        await desk.sync()
        assert sorted(await desk.notes()) == ["from the person", "likes coffee", "stays", "written meanwhile"]


async def test_a_note_that_contains_the_separator_survives_an_edit(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("two\n§\nparts")
        await desk.add("two\r\nlines")
        await desk.sync()
        desk.edit(lambda text: text + "§\nfrom the person\n")
        await desk.sync()
        assert await desk.notes() == ["two\n§\nparts", "two\r\nlines", "from the person"]


async def test_a_file_that_is_too_large_is_refused_and_removes_no_note(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        for letter in "abc":
            await desk.add(letter)
        await desk.sync()
        desk.edit(lambda text: "x" * (FILE_CHARS_MAX + 1))
        with pytest.raises(TooLarge, match="MEMORY.md"):
            await desk.sync()
        assert await desk.notes() == ["a", "b", "c"]
        assert len(desk.file.read_text()) == FILE_CHARS_MAX + 1


async def test_notes_beyond_the_read_limit_of_the_file_are_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        for number in range(FILE_CHARS_MAX // NOTE_CHARS_MAX + 2):
            await desk.add(f"{number:03}" + "x" * (NOTE_CHARS_MAX - 3))
        before = await desk.notes()
        await desk.sync()
        assert await desk.sync() == 0
        assert await desk.notes() == before


async def test_a_forgotten_fact_is_removed_from_the_file(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        secret = await desk.add("a secret")
        await desk.add("stays")
        await desk.sync()
        await core.lifecycle.forget(ForgetFact(secret.note_id), owner=ME)
        await desk.sync()
        assert desk.file.read_text() == "stays\n"
        assert await desk.notes() == ["stays"]


async def test_an_edited_file_does_not_restore_a_forgotten_fact(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        secret = await desk.add("a secret")
        await desk.sync()
        await core.lifecycle.forget(ForgetFact(secret.note_id), owner=ME)
        desk.edit(lambda text: "A  Secret\n§\nfrom the person\n")
        await desk.sync()
        assert await desk.notes() == ["from the person"]
        assert desk.file.read_text() == "from the person\n"


async def test_a_fact_learned_again_survives_the_next_edit(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        secret = await desk.add("likes tea")
        await core.lifecycle.forget(ForgetFact(secret.note_id), owner=ME)
        await desk.add("likes tea")
        await desk.sync()
        desk.edit(lambda text: text + "§\nfrom the person\n")
        await desk.sync()
        assert await desk.notes() == ["likes tea", "from the person"]


async def test_an_edit_seen_by_two_syncs_at_once_is_imported_once(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, tmp_path)
        await desk.add("likes tea")
        await desk.sync()
        desk.edit(lambda text: text + SEPARATOR + "likes cake")
        assert sorted(await asyncio.gather(*(desk.sync() for _ in range(5)))) == [0, 0, 0, 0, 1]
        assert await desk.notes() == ["likes tea", "likes cake"]


async def test_an_owner_with_a_long_non_latin_name_has_notes(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        note = await core.note("likes tea", owner="語" * 200)
        assert note.owner == "語" * 200


async def test_an_edit_is_imported_although_its_file_cannot_be_written(tmp_path: Path) -> None:
    # The path of the file is almost as long as a path may be, so that the draft beside it would be too long.
    folder = tmp_path
    while (room := os.pathconf(tmp_path, "PC_PATH_MAX") - 6 - len(f"{folder}/{ME}/MEMORY.md")) > 1:
        folder /= "x" * min(room - 1, 200)
    async with CoreFixture(tmp_path) as core:
        desk = ScheduleFixture(core, folder)
        desk.edit(lambda _: "  keeps bees\n")
        with pytest.raises(OSError, match="too long"):
            await desk.sync()
        assert await desk.notes() == ["keeps bees"]
        with pytest.raises(OSError, match="too long"):
            await desk.sync()
        assert await desk.notes() == ["keeps bees"]
