import asyncio
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from tests.damaged_files import damage_index
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import NotFound, StoreBusy
from everthread.domain.media import Media
from everthread.domain.model import Inbound, NoteAction, NoteTarget, NoteVersion
from everthread.lifecycle import ForgetFact, Lifecycle, NoteChange
from everthread.lifecycle.archive import leaves_first, prunable
from everthread.lifecycle.home_files import HomeFiles
from everthread.store.search_index import OCTETS_PER_BATCH
from everthread.store.unit_of_work import Store

FACT = "likes tea"


async def note(lifecycle: Lifecycle, text: str, owner: str) -> NoteVersion:
    return await lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, text), owner=owner)


async def notes(store: Store, owner: str) -> list[str]:
    return await store.read(lambda uow: [each.content for each in uow.notes.current(owner, NoteTarget.MEMORY)])


def test_parents_follow_their_last_child_and_a_parent_of_a_kept_child_stays() -> None:
    children = [("a", "b"), ("b", "c"), ("d", "e"), ("d", "f")]
    assert leaves_first({"a", "b", "c", "d", "f"}, children) == ["c", "f", "b", "a"]


async def test_an_ended_session_is_pruned_and_an_open_one_is_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        current = (await core.turn(CLI, "two")).ref.session_id
        later = core.clock.now() + 1.0
        found = await core.store.read(lambda uow: prunable(uow, later))
        assert [session.id for session in found.sessions] == [old]
        assert await core.lifecycle.prune([old, current], before=later) == (1, 1)
        assert await core.store.read(lambda uow: uow.sessions.get(old)) is None
        assert await core.shown(current) == ["two"]


async def test_others_write_while_old_messages_are_indexed_before_a_session_is_pruned(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.stop_lanes()
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        for _ in range(3):
            await core.turn(CLI, "words " * (OCTETS_PER_BATCH // 6))
        await core.store.index()
        await core.store.write(lambda uow: uow.search.clear())
        pruned, is_indexed = await asyncio.gather(
            core.lifecycle.prune([old], before=core.clock.now() + 1.0),
            core.store.write(lambda uow: uow.search.is_indexed()),
        )
        assert pruned == (1, 1)
        assert not is_indexed, "the write waited for the whole index"
        assert await core.store.read(lambda uow: uow.search.is_indexed())


async def test_a_fact_is_forgotten_although_the_search_index_is_damaged(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        fact = await core.note("mulberry")
        for text in ("the word is mulberry", "another word", "the third word"):
            await core.turn(CLI, text)
            # A segment of the index for each, so that there is something to merge.
            await core.store.index()
        path = tmp_path / "everthread.db"
        damage_index(path)
        assert await core.lifecycle.forget(ForgetFact(fact.note_id), owner=ME) == 1
        incidents = await core.store.read(lambda uow: uow.incidents.newest(9))
        assert [incident.source for incident in incidents] == ["forget"]
        assert "everthread sessions reindex removes them" in incidents[0].text
        assert b"mulberry" not in path.with_name("everthread.db-wal").read_bytes()
        await core.store.index()
        assert len(await core.store.read(lambda uow: uow.search.search(ME, "word", limit=9))) == 6
        assert not await core.store.read(lambda uow: uow.search.search(ME, "mulberry", limit=9))
    assert b"mulberry" not in path.read_bytes()


@pytest.mark.parametrize("guest", ["", "telegram:42"])
async def test_a_request_to_forget_that_fails_changes_no_note(guest: str, tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path), busy_s_max=0.05) as runtime:
        owner, lifecycle = guest or runtime.settings.owner, runtime.lifecycle
        fact = await note(lifecycle, FACT, owner)
        await note(lifecycle, f"Bob {FACT} and cake", owner)
        assert await runtime.sync_notes(owner) == ""
        async with CoreFixture(tmp_path) as other:
            await other.stop_lanes()
            locked, release = threading.Event(), threading.Event()
            writing = asyncio.create_task(other.store.write(lambda uow: (locked.set(), release.wait())))
            await asyncio.to_thread(locked.wait)
            with pytest.raises(StoreBusy):
                await lifecycle.forget(ForgetFact(fact.note_id), owner=owner)
            release.set()
            await writing
        assert await runtime.sync_notes(owner) == ""
        assert await notes(runtime.store, owner) == [FACT, f"Bob {FACT} and cake"]
        await lifecycle.forget(ForgetFact(fact.note_id), owner=owner)
        file = runtime.note_files.path(owner, NoteTarget.MEMORY)
        assert file.read_text() == "Bob [forgotten] and cake\n", "written again with the request"
        assert await notes(runtime.store, owner) == ["Bob [forgotten] and cake"]


async def test_a_process_that_dies_before_it_writes_the_note_files_again_loses_no_note(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        files = core.note_files(lambda owner: tmp_path / "memory")
        fact = await core.note(FACT)
        await core.note(f"Bob {FACT} and cake")
        await core.note("lives in Oslo")
        await files.sync(ME)
        await core.lifecycle.forget(ForgetFact(fact.note_id), owner=ME)
        await core.note("has a sister")
        assert await files.sync(ME) == 0
        assert await notes(core.store, ME) == ["Bob [forgotten] and cake", "lives in Oslo", "has a sister"]
        assert await files.sync(ME) == 0
        file = files.path(ME, NoteTarget.MEMORY)
        file.write_text(file.read_text().replace("lives in Oslo", "lives in Bergen"))
        await files.sync(ME)
        assert await notes(core.store, ME) == ["Bob [forgotten] and cake", "lives in Bergen", "has a sister"]


async def test_an_edit_of_a_note_file_is_forgotten_with_its_note(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        fact = await note(runtime.lifecycle, FACT, owner)
        await runtime.sync_notes(owner)
        file = runtime.note_files.path(owner, NoteTarget.MEMORY)
        file.write_text(f"{FACT} with milk\n")
        await runtime.lifecycle.forget(ForgetFact(fact.note_id), owner=owner)
        assert (await notes(runtime.store, owner), file.read_text()) == ([], "")


async def test_a_note_file_that_can_not_be_written_is_reported(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        fact = await note(runtime.lifecycle, FACT, owner)
        (tmp_path / "memory" / "MEMORY.md").mkdir(parents=True)
        await runtime.lifecycle.forget(ForgetFact(fact.note_id), owner=owner)
        [incident] = await runtime.store.read(lambda uow: uow.incidents.newest(9))
        assert incident.source == "forget"
        assert incident.text.startswith("the note files were not updated: ")


async def test_an_attachment_that_arrives_while_a_fact_is_forgotten_is_removed(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    path = "telegram/1-0-a.txt"
    file = tmp_path / "media" / path
    file.parent.mkdir(parents=True)

    class SlowFiles(HomeFiles, frozen=True):
        """Files of a home to which an attachment is added right after the attachments were searched."""

        def attachments_with(self, texts: Sequence[str], paths: Iterable[str]) -> tuple[str, ...]:
            found = super().attachments_with(texts, paths)
            if not file.exists() and not found:
                file.write_text(f"she {FACT}")
                inbound = Inbound(TELEGRAM, ME, "see this", media=(Media("file", "a.txt", path=path),))
                asyncio.run_coroutine_threadsafe(core.lifecycle.accept(inbound), loop).result()
            return found

    async with CoreFixture(tmp_path) as core:
        lifecycle = Lifecycle(
            core.store,
            core.clock,
            core.new_id,
            holder=core.holder,
            remove_file=lambda name: (tmp_path / "media" / name).unlink(),
            home_files=lambda: SlowFiles(tmp_path, ME),
        )
        fact = await core.note(FACT)
        await lifecycle.forget(ForgetFact(fact.note_id), owner=ME)
        assert await core.store.read(lambda uow: uow.attachments.paths(ME)) == ()
        assert not file.exists()


async def test_an_attachment_is_removed_later_if_the_process_dies_after_the_transaction(tmp_path: Path) -> None:
    path = "telegram/1-0-a.txt"
    file = tmp_path / "media" / path
    file.parent.mkdir(parents=True)
    file.write_text(f"she {FACT}")

    class DyingFiles(HomeFiles, frozen=True):
        """Files of a home whose process dies at the second search, which follows the transaction."""

        def attachments_with(self, texts: Sequence[str], paths: Iterable[str]) -> tuple[str, ...]:
            if searches.pop():
                raise KeyError("killed")
            return super().attachments_with(texts, paths)

    searches = [True, False]
    async with CoreFixture(tmp_path) as core:
        lifecycle = Lifecycle(
            core.store,
            core.clock,
            core.new_id,
            holder=core.holder,
            remove_file=lambda name: (tmp_path / "media" / name).unlink(),
            home_files=lambda: DyingFiles(tmp_path, ME),
        )
        fact = await core.note(FACT)
        media = Media("file", "a.txt", path=path)
        await lifecycle.accept(Inbound(TELEGRAM, ME, "see this", media=(media,)))
        with pytest.raises(KeyError):
            await lifecycle.forget(ForgetFact(fact.note_id), owner=ME)
        await lifecycle.remove_files()
        assert not file.exists()


async def test_a_request_that_finds_nothing_leaves_the_logs(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "everthread.log"
    log.parent.mkdir()
    log.write_text("an error\n")
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        with pytest.raises(NotFound):
            await runtime.lifecycle.forget(ForgetFact("no-such-note"), owner=owner)
        assert log.read_text() == "an error\n"
        fact = await note(runtime.lifecycle, FACT, owner)
        await runtime.lifecycle.forget(ForgetFact(fact.note_id), owner=owner)
        assert log.read_text().strip() == ""


async def test_skills_that_can_not_be_locked_are_named_and_the_fact_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "skills" / ".old" / "lock").mkdir(parents=True)
    skill = tmp_path / "skills" / "tea" / "SKILL.md"
    skill.parent.mkdir()
    skill.write_text(f"she {FACT}")
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        fact = await note(runtime.lifecycle, FACT, owner)
        assert await runtime.lifecycle.forget(ForgetFact(fact.note_id), owner=owner) == 1
        assert await notes(runtime.store, owner) == []
        [incident] = await runtime.store.read(lambda uow: uow.incidents.newest(9))
        assert incident.text == "skills/tea/SKILL.md may still contain forgotten words (Is a directory); remove it"
