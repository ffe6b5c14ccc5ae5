"""Platforms hand over half an emoji now and then: a lone surrogate, which no file can hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everthread.bootstrap import Runtime
from everthread.config import Settings
from everthread.domain.model import ChatType, Inbound, Message, NoteAction, NoteTarget, Role, SessionKey, whole
from everthread.lifecycle import NoteChange

HALF = "half \ud83d of it"
KEY = SessionKey("main", "telegram", ChatType.DM, "1")


def test_whole_text_stays_as_it_is() -> None:
    assert whole("plain") == "plain"
    assert whole("déjà 😀") == "déjà 😀"


def test_half_a_character_is_replaced_wherever_text_comes_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with Runtime(Settings(tmp_path)) as runtime:
            row, _ = await runtime.lifecycle.accept(Inbound(KEY, "me", HALF))
            ticket = await runtime.lifecycle.begin_turn(KEY)
            assert ticket is not None
            done = await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, HALF)], HALF)
            note = await runtime.lifecycle.write_note(
                NoteChange(NoteAction.ADD, NoteTarget.MEMORY, HALF), owner="me", ref=ticket.ref
            )
            assert done.reply is not None
            assert {row.inbound.text, done.reply.text, note.content} == {"half ? of it"}

    asyncio.run(story())
