"""Deliveries to the Honcho provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.honcho import FakeHoncho

from everthread.adapters.memory.honcho.provider import Honcho
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionKey, SessionRef

ANN, BOB = "telegram:1 ann", "telegram:1-ann"


def ref(session: str, owner: str = ANN) -> SessionRef:
    return SessionRef(session, 0, SessionKey("main", "telegram", ChatType.DM, owner), 1, owner)


def nth(seq: int, session: str = "s1", attempt: int = 1) -> Delivery:
    return Delivery(f"{session}:{seq}:honcho:0", seq, attempt)


@asynccontextmanager
async def honcho(fake: FakeHoncho, **settings: Any) -> AsyncIterator[Honcho]:
    provider = Honcho()
    await provider.initialize(**{"url": fake.address, "workspace": "everthread", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def say(provider: Honcho, text: str, turn: int = 1, session: str = "s1", owner: str = ANN) -> None:
    await provider.sync_turn(text, "I see.", ref=ref(session, owner), delivery=nth(turn, session), turn=turn, at=1.0)


async def note(provider: Honcho, content: str, seq: int, session: str = "s1", action: str = "add") -> None:
    about = {"note_id": "n1"}
    await provider.on_memory_write(action, "user", content, about, ref=ref(session), delivery=nth(seq, session))
