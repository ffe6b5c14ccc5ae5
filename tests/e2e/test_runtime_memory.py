"""The built-in memory of the runtime: recall of earlier turns, and note files that mirror the notes."""

from __future__ import annotations

from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import ForgetFact, NoteChange

KEY = SessionKey.parse("agent:main:cli:dm:1")


async def said(runtime: Runtime, text: str, owner: str) -> None:
    await runtime.lifecycle.accept(Inbound(KEY, owner, text))
    ticket = await runtime.lifecycle.begin_turn(KEY)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, text), Message(Role.ASSISTANT, "I see.")], "I see.")


async def noted(runtime: Runtime, content: str, owner: str) -> str:
    change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, content)
    return (await runtime.lifecycle.write_note(change, owner=owner)).note_id


async def test_a_runtime_without_providers_remembers(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        await runtime.start()
        await said(runtime, "My dog is called Bruno", owner)
        crossing = await runtime.lifecycle.cross(KEY, New(), owner=owner)
        assert crossing.ref is not None
        recall = await runtime.memory.recall("what was the name of my dog again?", ref=crossing.ref)
        assert [item.text for item in recall.items] == ["user: My dog is called Bruno\nassistant: I see."]
        assert await runtime.drain()


async def test_note_files_mirror_the_notes_and_are_read_back_when_edited(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        owner, mine = runtime.settings.owner, tmp_path / "memory" / "MEMORY.md"
        await noted(runtime, "keeps bees", owner)
        await noted(runtime, "bob's own", "bob/../..")
        assert [await runtime.sync_notes(who) for who in (owner, "bob/../..")] == ["", ""]
        assert mine.read_text() == "keeps bees\n"
        assert (tmp_path / "memory" / "bob%2F%2E%2E%2F%2E%2E" / "MEMORY.md").read_text() == "bob's own\n"
        mine.write_text("keeps seven hives\n")
        assert await runtime.note_files.sync(owner) == 1
        [note] = await runtime.store.read(lambda uow: uow.notes.current(owner, NoteTarget.MEMORY))
        assert note.content == "keeps seven hives"
        await runtime.lifecycle.forget(ForgetFact(note.note_id), owner=owner)
        assert await runtime.sync_notes(owner) == ""
        assert mine.read_text() == ""


async def test_unusable_note_files_are_reported_and_do_not_stop_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("in the way")
    async with Runtime(Settings(tmp_path)) as runtime:
        owner = runtime.settings.owner
        await noted(runtime, "keeps bees", owner)
        assert "were not updated" in await runtime.sync_notes(owner)
        assert any("note files" in line for line in await runtime.ready())
