"""Helpers of the store contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from functools import wraps
from itertools import count
from typing import Any, TypeVar

import pytest

from everthread.domain.boundary import Branch, Compress, New, Refusal, Resume, Rewind
from everthread.domain.events import Event, LogEntry, View
from everthread.domain.model import (
    Cause,
    ChatType,
    Inbound,
    Message,
    Role,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.store.search_index import Hit
from everthread.store.unit_of_work import Store, UnitOfWork

T = TypeVar("T")

OpenStore = Callable[[], Awaitable[Store]]

NEVER = ResetPolicies(ResetPolicy())


def present(value: T | None) -> T:
    assert value is not None
    return value


def key_named(chat: str, platform: str = "telegram") -> SessionKey:
    return SessionKey("main", platform, ChatType.DM, chat)


class StillClock:
    """Clock that only moves when it is set. To set the wall clock without letting time pass, set `ahead_s`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.time = now
        self.ahead_s = 0.0

    def now(self) -> float:
        return self.time + self.ahead_s

    def elapsed(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class StoreConversation:
    """A lifecycle on a store, with the steps that most tests share."""

    def __init__(self, store: Store, holder: str = "here") -> None:
        self.store = store
        self.clock = StillClock()
        numbers = count(1)
        self.lifecycle = Lifecycle(
            store, self.clock, lambda: f"{holder}-{next(numbers):06d}", holder=holder, policies=NEVER
        )

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.store.read(work)

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.store.write(work)

    async def write_each(self, rows: Iterable[T], work: Callable[[UnitOfWork, T], object]) -> None:
        """Write the rows, each in a transaction of its own."""
        for row in rows:
            await self.write(lambda uow, row=row: work(uow, row))

    async def accept(self, text: str, key: SessionKey, owner: str = "ann") -> None:
        await self.lifecycle.accept(Inbound(key, owner, text))

    async def begin(self, text: str, key: SessionKey, owner: str = "ann") -> TurnClaim:
        await self.accept(text, key, owner)
        return present(await self.lifecycle.begin_turn(key))

    async def say(self, text: str, key: SessionKey, owner: str = "ann", answer: str = "") -> SessionRef:
        """Run a whole turn: a message and its answer."""
        ticket = await self.begin(text, key, owner)
        messages = [Message(Role.USER, text)] + ([Message(Role.ASSISTANT, answer)] if answer else [])
        return (await self.lifecycle.commit_turn(ticket, messages, answer or None)).ref

    async def new(self, key: SessionKey, owner: str = "ann", title: str = "") -> str:
        return session_id_of((await self.lifecycle.cross(key, New(title), owner=owner)).ref)

    async def branch(self, key: SessionKey, owner: str = "ann") -> str:
        return session_id_of((await self.lifecycle.cross(key, Branch(), owner=owner)).ref)

    async def resume(self, key: SessionKey, session_id: str, owner: str = "ann") -> str:
        return session_id_of((await self.lifecycle.cross(key, Resume(session_id), owner=owner)).ref)

    async def rewind(self, key: SessionKey, turns: int = 1, owner: str = "ann") -> Refusal | None:
        return (await self.lifecycle.cross(key, Rewind(turns), owner=owner)).refusal

    async def compress(self, key: SessionKey, summary: str, covers_to: int, owner: str = "ann") -> str:
        here = present(await self.lifecycle.current(key))
        boundary = Compress(here.session_id, here.generation, summary, covers_to)
        return session_id_of((await self.lifecycle.cross(key, boundary, owner=owner)).ref)

    async def session(self, session_id: str) -> Session:
        return present(await self.read(lambda uow: uow.sessions.get(session_id)))

    async def view(self, session_id: str) -> View:
        return await self.read(lambda uow: view_of(uow, session_id))

    async def texts(self, session_id: str) -> list[str]:
        return texts_of(await self.view(session_id))

    async def entries(self, session_id: str) -> list[LogEntry]:
        def read(uow: UnitOfWork) -> list[LogEntry]:
            entries: list[LogEntry] = []
            while entry := uow.log.after(session_id, entries[-1].seq if entries else 0):
                entries.append(entry)
            return entries

        return await self.read(read)

    async def discover_all(self, now: float = 10.0) -> tuple[str, ...]:
        """Discover all new entries for the provider `p`. Return the sessions that are due."""

        def discover(uow: UnitOfWork) -> tuple[str, ...]:
            while uow.cursors.discover("p", now, 100):
                pass
            return uow.cursors.due_sessions("p", now, 100)

        return await self.write(discover)

    async def search(self, query: str, owner: str = "ann", *, limit: int = 10, ranked: bool = False) -> list[str]:
        return [hit.content for hit in await self.hits(query, owner, limit=limit, ranked=ranked)]

    async def hits(self, query: str, owner: str = "ann", *, limit: int = 10, ranked: bool = False) -> tuple[Hit, ...]:
        await self.store.index()
        return await self.read(lambda uow: uow.search.search(owner, query, limit=limit, ranked=ranked))

    async def recall(
        self, question: str, owner: str = "ann", *, limit: int = 10, beside: str | None = None
    ) -> list[str]:
        def recall(uow: UnitOfWork) -> tuple[Hit, ...]:
            session = uow.sessions.get(beside) if beside else None
            return uow.search.recall(owner, question, limit=limit, beside=session)

        await self.store.index()
        return [hit.content for hit in await self.read(recall)]


def session_id_of(ref: SessionRef | None) -> str:
    return present(ref).session_id


def view_of(uow: UnitOfWork, session_id: str) -> View:
    session = present(uow.sessions.get(session_id))
    view = uow.turns.view(session)
    assert uow.turns.count(session) == len(view.turns)
    return view


def texts_of(view: View) -> list[str]:
    """The summary in brackets, then the text of each turn."""
    return ([f"[{view.summary}]"] if view.summary is not None else []) + [turn.user_text for turn in view.turns]


def plain_session(session_id: str, owner: str = "ann", title: str | None = None) -> Session:
    return Session(session_id, owner, key_named(session_id), SessionKind.CHAT, Cause.NEW, 1.0, title=title)


KEY = key_named("42")
OTHER_KEY = key_named("43")


async def one_step() -> None:
    """Run one iteration of the event loop."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def awaited(work: Awaitable[None]) -> None:
    await work


async def commit_user_message(talk: StoreConversation, ticket: TurnClaim, answer: str | None = None):
    text = ticket.message.inbound.text
    return await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, text)], answer)


def event_at(uow: UnitOfWork, session_id: str, seq: int) -> Event:
    return uow.log.event(present(uow.log.entry(session_id, seq)), ())


def on_store(
    test: Callable[[Any, StoreConversation], Coroutine[Any, Any, None]],
) -> Callable[[Any, OpenStore], None]:
    """Run a test in an event loop of its own, with a conversation on an open store."""

    @wraps(test)
    def run(self: Any, open_store: OpenStore) -> None:
        async def steps() -> None:
            async with aclosing(await open_store()) as store:
                await test(self, StoreConversation(store))

        asyncio.run(steps())

    # Otherwise pytest reads the parameters of `test`.
    del vars(run)["__wrapped__"]
    return run


class StoreFixture:
    """Base class that declares the fixture `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("give the contract a fixture `open_store`; see its module's docstring")

    async def crash(self, store: Store) -> None:
        """Drop a handle as if its process had died, without cleanup."""
