"""A store on disk with a lifecycle, and fast ways to fill it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.model import (
    Binding,
    Cause,
    ChatType,
    Inbound,
    Message,
    Role,
    Session,
    SessionKey,
    SessionKind,
    ToolCall,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.lifecycle import turns as turn
from everthread.lifecycle.base import WriteContext
from everthread.store.unit_of_work import UnitOfWork

OWNER = "ann"
HOLDER = "bench:1"
MESSAGES_PER_TURN = 4
POLICIES = ResetPolicies(ResetPolicy(idle_s=86_400.0))

_UNIT_TURNS = 250
_UNIT_KEYS = 2_000


class WallClock:
    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _new_ids() -> Callable[[], str]:
    """Return a generator of ids as long as real ones."""
    numbers = itertools.count(1)
    return lambda: f"01JZ{next(numbers):022d}"


@dataclass
class StoreFixture:
    path: Path
    store: SqliteStore
    clock: WallClock = field(default_factory=WallClock)
    new_id: Callable[[], str] = field(default_factory=_new_ids)

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle(self.store, self.clock, self.new_id, holder=HOLDER, policies=POLICIES)

    async def begin_turns(self, keys: Sequence[SessionKey], text: str) -> list[TurnClaim]:
        """Begin a turn for each key."""
        lifecycle = self.lifecycle
        await asyncio.gather(*(lifecycle.accept(Inbound(key, OWNER, text)) for key in keys))
        claims = await asyncio.gather(*(lifecycle.begin_turn(key) for key in keys))
        return [claim for claim in claims if claim is not None]

    async def run_turns(self, keys: Sequence[SessionKey], texts: Sequence[str]) -> None:
        """Commit one turn for each key."""
        claims = await self.begin_turns(keys, texts[0])
        messages = make_turn(texts)
        await asyncio.gather(*(self.lifecycle.commit_turn(claim, messages, texts[-1]) for claim in claims))

    async def fill(
        self, key_of_turn: Callable[[int], SessionKey], texts: Iterable[str], per_turn: int = MESSAGES_PER_TURN
    ) -> None:
        """Write whole turns, many per transaction, through the functions that single turns use."""
        numbered = enumerate(_batched(texts, per_turn))
        while unit := list(itertools.islice(numbered, _UNIT_TURNS)):

            def work(uow: UnitOfWork, unit: list[tuple[int, tuple[str, ...]]] = unit) -> None:
                for number, chunk in unit:
                    self._write_turn(uow, key_of_turn(number), chunk)

            await self.store.write(work)

    async def bind(self, keys: Sequence[SessionKey]) -> None:
        """Bind an empty session to each key."""
        now = self.clock.now()
        for start in range(0, len(keys), _UNIT_KEYS):

            def work(uow: UnitOfWork, some: Sequence[SessionKey] = keys[start : start + _UNIT_KEYS]) -> None:
                for key in some:
                    session = Session(self.new_id(), OWNER, key, SessionKind.CHAT, Cause.NEW, now, active_at=now)
                    uow.sessions.add(session)
                    uow.sessions.bind(Binding(key, OWNER, session.id, 1))

            await self.store.write(work)

    def number(self, sql: str) -> int:
        """Run a query with one integer result on the database file."""
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return connection.execute(sql).get
        finally:
            connection.close()

    def checkpoint(self) -> None:
        """Checkpoint and truncate the write-ahead log."""
        connection = apsw.Connection(str(self.path))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _write_turn(self, uow: UnitOfWork, key: SessionKey, texts: Sequence[str]) -> None:
        context = WriteContext(self.clock.now(), self.new_id, HOLDER, POLICIES, frozenset())
        uow.inbox.accept(Inbound(key, OWNER, texts[0]), context.now)
        claim = turn.begin(uow, key, self.new_id(), context)
        assert claim is not None
        turn.commit(uow, claim, make_turn(texts), texts[-1], context)


@asynccontextmanager
async def store_fixture(folder: Path) -> AsyncIterator[StoreFixture]:
    """Open an empty store in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="everthread-bench-") as home:
        path = Path(home) / "everthread.db"
        store = await SqliteStore.open(path)
        try:
            yield StoreFixture(path, store)
        finally:
            await store.aclose()


def keys(count: int) -> list[SessionKey]:
    return [SessionKey("main", "telegram", ChatType.DM, str(100_000_000 + number)) for number in range(count)]


def make_turn(texts: Sequence[str]) -> tuple[Message, ...]:
    """Make a turn: a question, tool calls with their results, and the answer."""
    question, *between, answer = texts
    call = ToolCall("call_1", "read_file", '{"path": "notes/today.md"}')
    steps = (
        Message(Role.TOOL, text, tool_call_id=call.id, name=call.name)
        if index % 2
        else Message(Role.ASSISTANT, text, tool_calls=(call,))
        for index, text in enumerate(between)
    )
    return (Message(Role.USER, question), *steps, Message(Role.ASSISTANT, answer))


def _batched(texts: Iterable[str], size: int) -> Iterable[tuple[str, ...]]:
    source = iter(texts)
    while chunk := tuple(itertools.islice(source, size)):
        yield chunk
