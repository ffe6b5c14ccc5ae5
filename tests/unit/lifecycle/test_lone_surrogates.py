"""Platforms hand over half an emoji now and then: a lone surrogate, which no file can hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.model import (
    ChatType,
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    Role,
    SessionKey,
    ToolCall,
    replace_surrogates,
)
from everthread.lifecycle import NoteChange

HALF = "half \ud83d of it"
KEY = SessionKey("main", "telegram", ChatType.DM, "1")


def test_valid_text_is_unchanged() -> None:
    assert replace_surrogates("plain") == "plain"
    assert replace_surrogates("déjà 😀") == "déjà 😀"


def test_lone_surrogates_are_replaced_in_every_input(tmp_path: Path) -> None:
    async def story() -> None:
        async with Runtime(Settings(tmp_path)) as runtime:
            row, _ = await runtime.lifecycle.accept(Inbound(KEY, "me", HALF))
            ticket = await runtime.lifecycle.begin_turn(KEY)
            assert ticket is not None
            await runtime.lifecycle.start_tool(ticket, "1", "look", HALF)
            await runtime.lifecycle.finish_tool(ticket, "1", HALF)
            call = Message(Role.ASSISTANT, HALF, (ToolCall("1", "look", HALF),), reasoning=HALF)
            await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, HALF), call], HALF)
            note = await runtime.lifecycle.write_note(
                NoteChange(NoteAction.ADD, NoteTarget.MEMORY, HALF), owner="me", ref=ticket.ref
            )
            await runtime.lifecycle.record_delegation(ticket.ref, HALF, HALF, "child")
            turn = await runtime.store.read(lambda uow: uow.turns.get(ticket.ref.session_id, 1))
            reply = await runtime.store.read(lambda uow: uow.outbox.reply(ticket.turn_id))
            stored = await runtime.store.read(lambda uow: uow.notes.get(note.note_id))
            assert turn is not None
            assert reply is not None
            assert stored is not None
            texts = {row.inbound.text, reply.text, stored.content, *turn.messages[1].texts(), turn.user_text}
            assert texts == {"half ? of it"}

    asyncio.run(story())
