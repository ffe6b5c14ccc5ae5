"""Store a fact as a note, mention it in a conversation, and forget it in both places."""

import asyncio
import tempfile
from pathlib import Path

from shelf import Shelf

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import ForgetFact, NoteChange

HERE = SessionKey.parse("agent:main:cli:dm:1")


async def main(home):
    async with Runtime(Settings(home), providers=[Shelf(home / "shelf.db")]) as runtime:
        await runtime.start()
        lifecycle = runtime.lifecycle
        await lifecycle.accept(Inbound(HERE, "me", "Remember: the gate code is 4711."))
        claim = await lifecycle.begin_turn(HERE)
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, "the gate code is 4711")
        note = await lifecycle.write_note(change, owner="me", ref=claim.ref)
        messages = [Message(Role.USER, claim.message.inbound.text), Message(Role.ASSISTANT, "Noted.")]
        await lifecycle.commit_turn(claim, messages, "Noted.")
        await runtime.drain()
        await show(runtime, claim.ref)

        await lifecycle.forget(ForgetFact(note.note_id), owner="me")
        await runtime.drain()
        await show(runtime, claim.ref)
    print("in the store's files:", any(b"4711" in file.read_bytes() for file in home.glob("everthread.db*")))


async def show(runtime, ref):
    session = await runtime.store.read(lambda uow: uow.sessions.get(ref.session_id))
    view = await runtime.store.read(lambda uow: uow.turns.view(session))
    recall = await runtime.memory.recall("gate code", ref=ref)
    print("transcript:", [turn.user_text for turn in view.turns])
    print("recall:", [item.text for item in recall.items])


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
