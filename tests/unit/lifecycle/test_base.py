"""A process may be stopped between asking and writing; what it then writes must carry the time of the writing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.boundary import Branch, New
from everthread.domain.model import ChatType, Inbound, Message, NoteAction, NoteTarget, Role, Session, SessionKey
from everthread.lifecycle import Lifecycle, NoteChange
from everthread.store.unit_of_work import UnitOfWork

KEY = SessionKey("main", "cli", ChatType.DM, "1")


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    elapsed = now

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class StoppedBeforeWriting:
    """A store whose every write begins an hour after it was asked for."""

    def __init__(self, store: SqliteStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Callable[[UnitOfWork], Any]) -> Any:
        self._clock.time += 3600.0
        return await self._store.write(work)

    async def write_inline(self, work: Callable[[UnitOfWork], Any]) -> Any:
        return await self.write(work)


def with_lifecycle(path: Path, story: Callable[[Lifecycle, SqliteStore, Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        store = await SqliteStore.open(path / "test.db")
        ids = iter(range(10_000))
        slow: Any = StoppedBeforeWriting(store, clock)
        await story(Lifecycle(slow, clock, lambda: f"id{next(ids):05}", holder="p"), store, clock)
        await store.aclose()

    asyncio.run(run())


async def session_now(lifecycle: Lifecycle, store: SqliteStore) -> Session:
    ref = await lifecycle.current(KEY)
    assert ref is not None
    session = await store.read(lambda uow: uow.sessions.get(ref.session_id))
    assert session is not None
    return session


def test_a_message_is_accepted_when_it_is_stored(tmp_path: Path) -> None:
    async def story(lifecycle: Lifecycle, store: SqliteStore, clock: Clock) -> None:
        row, _ = await lifecycle.accept(Inbound(KEY, "me", "hello"))
        assert row.accepted_at == clock.now()

    with_lifecycle(tmp_path, story)


def test_a_turn_opens_its_session_when_it_is_begun(tmp_path: Path) -> None:
    async def story(lifecycle: Lifecycle, store: SqliteStore, clock: Clock) -> None:
        await lifecycle.accept(Inbound(KEY, "me", "hello"))
        ticket = await lifecycle.begin_turn(KEY)
        assert ticket is not None
        assert (await session_now(lifecycle, store)).opened_at == clock.now()
        await lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], None)
        session = await session_now(lifecycle, store)
        assert session.active_at == clock.now()
        view = await store.read(lambda uow: uow.turns.view(session))
        assert view.turns[0].at == clock.now()

    with_lifecycle(tmp_path, story)


def test_a_boundary_and_a_note_are_dated_by_their_commit(tmp_path: Path) -> None:
    async def story(lifecycle: Lifecycle, store: SqliteStore, clock: Clock) -> None:
        for boundary in (New(), Branch()):
            await lifecycle.cross(KEY, boundary, owner="me")
            assert (await session_now(lifecycle, store)).opened_at == clock.now()
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "likes tea")
        note = await lifecycle.write_note(change, owner="me")
        assert note.at == clock.now()

    with_lifecycle(tmp_path, story)
