"""Worker process for the kill tests: accept messages, answer them, cross boundaries and deliver to memory.

The test passes the orders as JSON in the only argument. The worker reports each acknowledged operation on standard
output, one line at a time and before it does anything else, so that the test knows what was acknowledged before the
kill. The memory back end is a separate file that survives the process, like a remote server, and ignores a second
delivery under the same key.

The clock runs fast and is shared by all processes on one home, so that no test waits for a lease to expire.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from everthread.adapters.lanes.local import LocalLanes
from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.store import SqliteStore
from everthread.bootstrap.clock import ulids
from everthread.domain.boundary import Boundary, Branch, Compress, New, Reset, Resume, Rewind
from everthread.domain.errors import Busy, Fenced, StoreBusy, TurnCancelled
from everthread.domain.events import Delivery
from everthread.domain.model import (
    ChatType,
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    Role,
    SessionKey,
    SessionRef,
    ToolCall,
    ToolState,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import Lifecycle, NoteChange, TurnClaim
from everthread.memory import MemoryManager
from everthread.ports.memory import Capability, MemoryProvider
from everthread.store.unit_of_work import UnitOfWork

T = TypeVar("T")

OWNER = "me"
KEYS = (
    SessionKey("main", "cli", ChatType.DM, "1"),
    SessionKey("main", "telegram", ChatType.DM, "2"),
    SessionKey("main", "telegram", ChatType.DM, "3"),
    SessionKey("main", "matrix", ChatType.GROUP, "4"),
)
PROVIDERS = ("tasks", "threads")
UNKNOWN = "nobody knows what came of it"
BACK_END = """
CREATE TABLE effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE,
    provider TEXT, session_id TEXT, seq INTEGER, kind TEXT, facts TEXT
);
CREATE TABLE attempts (key TEXT, holder TEXT);
CREATE TABLE tools (turn_id TEXT, call_id TEXT);
"""
UNREST = """
SELECT (SELECT COUNT(*) FROM inbox WHERE state IN ('waiting', 'running')) + (SELECT COUNT(*) FROM slots)
     + (SELECT COUNT(*) FROM cursors WHERE due_at IS NOT NULL) + (SELECT COUNT(*) FROM redeliveries)
     + (SELECT COUNT(*) FROM providers WHERE scanned_pos < (SELECT MAX(pos) FROM log))
"""


@dataclass(frozen=True)
class GatewayOptions:
    """Settings of one worker."""

    home: str
    holder: str
    origin: float
    seed: int
    messages: list[int]
    rate: float = 60.0
    lease_s: float = 30.0
    at_once: int = 1
    """How many messages come in together."""
    boundaries: float = 0.25
    """How probable a boundary is after each message."""
    idle_s: float | None = 90.0
    """When the conversation of the group expires."""
    hold_s: float = 0.0
    """How long the second message is thought about, and how long the first one's delivery takes."""
    drain: bool = False
    """Stop once everything has come to rest; else go on until killed."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def store_path(home: str) -> Path:
    return Path(home) / "everthread.db"


def back_end_path(home: str) -> Path:
    return Path(home) / "back_end.db"


def open_back_end(home: str) -> sqlite3.Connection:
    return sqlite3.connect(back_end_path(home), timeout=30, isolation_level=None)


def message_text(number: int) -> str:
    return f"m{number}"


def message_key(number: int) -> SessionKey:
    return KEYS[number * 7 % 11 % len(KEYS)]


def uses_a_tool(text: str) -> bool:
    return int(text[1:]) % 3 == 0


def say(*words: object) -> None:
    # A single write: a line is complete or missing, at any moment of a kill.
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class FastClock:
    def __init__(self, origin: float, rate: float) -> None:
        self._origin = origin
        self._rate = rate

    def now(self) -> float:
        return self._origin + (time.time() - self._origin) * self._rate

    def elapsed(self) -> float:
        return time.monotonic() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


# Memory -------------------------------------------------------------------------------------------------------------


class ThreadScribe(MemoryProvider):
    """Synchronous memory provider that writes everything to the back end."""

    def __init__(self, name: str, orders: GatewayOptions) -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.DEDUPLICATES
        self._orders = orders

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self._take("turn", ref, delivery, number=more["turn"], text=user, answer=assistant)

    def on_session_switch(self, new_session_id: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        if more.get("rewound"):
            self._take("rewind", ref, delivery, turns=more["turns"])
        else:
            facts = {"parent": more["parent_session_id"], "reset": more["reset"], "reason": more["reason"]}
            self._take("opened", ref, delivery, **facts)

    def on_session_end(self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        shown = [turn.user_text for turn in more["view"].turns]
        self._take("close", ref, delivery, through=more["through_seq"], missing=more["missing"], shown=shown)

    def on_memory_write(
        self, action: str, target: str, content: str, metadata: Any, *, ref: SessionRef, delivery: Delivery
    ) -> None:
        self._take("note", ref, delivery, text=content)

    def _take(self, kind: str, ref: SessionRef, delivery: Delivery, **facts: Any) -> None:
        back_end = open_back_end(self._orders.home)
        try:
            back_end.execute("PRAGMA synchronous = OFF")
            back_end.execute("BEGIN IMMEDIATE")
            back_end.execute("INSERT INTO attempts VALUES (?, ?)", (delivery.key, self._orders.holder))
            back_end.execute(
                "INSERT INTO effects (key, provider, session_id, seq, kind, facts) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (delivery.key, self.name, ref.session_id, delivery.seq, kind, json.dumps(facts)),
            )
            back_end.execute("COMMIT")
        finally:
            back_end.close()
        say("delivered", delivery.key)


class TaskScribe(ThreadScribe):
    """Asynchronous variant of the provider, with a pause before and after each effect."""

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        if self._orders.hold_s:
            say("holding", delivery.key)
            await asyncio.sleep(self._orders.hold_s)
        await asyncio.sleep(0.001)
        super().sync_turn(user, assistant, ref=ref, delivery=delivery, **more)
        await asyncio.sleep(0.003)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        await asyncio.sleep(0.001)
        super().on_session_end(messages, ref=ref, delivery=delivery, **more)
        await asyncio.sleep(0.003)


class RefusedWriteReporter(logging.Handler):
    """Log handler that reports a refused write of a lane."""

    def emit(self, record: logging.LogRecord) -> None:
        match record.args:
            case (lane, Fenced()):
                say("fenced", "lane", lane)
            case _:
                pass


# The worker ---------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, orders: GatewayOptions, store: SqliteStore) -> None:
        self._orders = orders
        self._store = store
        self._dice = random.Random(orders.seed)
        self._clock = FastClock(orders.origin, orders.rate)
        new_id = ulids(self._clock.now)
        policies = ResetPolicies(ResetPolicy(), by_chat_type={ChatType.GROUP: ResetPolicy(idle_s=orders.idle_s)})
        self._lifecycle = Lifecycle(store, self._clock, new_id, holder=orders.holder, policies=policies)
        poll_s = 0.01 * orders.rate
        self._lanes = LocalLanes(store, self._clock, orders.holder, lease_s=orders.lease_s, poll_s=poll_s)
        providers = [TaskScribe(PROVIDERS[0], orders), ThreadScribe(PROVIDERS[1], orders)]
        self._memory = MemoryManager(providers, store, self._clock, self._lanes, random=self._dice.random)
        self._all_taken_in = False

    async def run(self) -> None:
        await self._insist(self._memory.start)
        self._lanes.serve("timers", self._lifecycle.expire_due)
        say("started")
        work = [self._lanes.run(), self._take_in(), self._recover(), *(self._answer_key(key) for key in KEYS)]
        tasks = {asyncio.ensure_future(one) for one in work}
        resting = asyncio.ensure_future(self._until_at_rest())
        running = {*tasks, resting}
        while not resting.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await self._memory.shutdown()
        await self._store.aclose()
        say("rested")

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry while another process holds the file lock for longer than the busy timeout."""
        while True:
            try:
                return await work()
            except StoreBusy:
                await asyncio.sleep(0.02)

    async def _take_in(self) -> None:
        left = list(self._orders.messages)
        while left:
            together, left = left[: self._orders.at_once], left[self._orders.at_once :]
            await asyncio.gather(*(self._accept(number) for number in together))
            for _ in together:
                if self._dice.random() < self._orders.boundaries:
                    await self._cross(self._dice.choice(KEYS))
            await asyncio.sleep(self._dice.choice((0.0, 0.002, 0.01)))
        self._all_taken_in = True

    async def _accept(self, number: int) -> None:
        inbound = Inbound(message_key(number), OWNER, message_text(number), update_id=str(number))
        row, new = await self._insist(lambda: self._lifecycle.accept(inbound))
        say("accepted", number, row.id, "new" if new else "again")

    async def _cross(self, key: SessionKey) -> None:
        boundary = await self._insist(lambda: self._store.read(lambda uow: self._boundary(uow, key)))
        crossing = await self._insist(lambda: self._lifecycle.cross(key, boundary, owner=OWNER))
        say("crossed", crossing.kind, crossing.refusal or "")

    def _boundary(self, uow: UnitOfWork, key: SessionKey) -> Boundary:
        dice = self._dice
        binding = uow.sessions.binding(key)
        session = uow.sessions.get(binding.session_id) if binding and binding.session_id else None
        choices: list[Boundary] = [New(), Reset(), Branch(), Rewind(dice.randint(1, 3))]
        choices += [Resume(other.id) for other in uow.sessions.recent(owner=OWNER, limit=2)]
        if session is not None:
            covers_to = dice.randint(session.floor, session.last_turn)
            choices += [Compress(session.id, session.generation, "what was said", covers_to)] * 2
        return dice.choice(choices)

    async def _answer_key(self, key: SessionKey) -> None:
        while True:
            if await self._insist(lambda: self._store.read(lambda uow: uow.inbox.first_waiting(key))):
                try:
                    ticket = await self._insist(lambda: self._lifecycle.begin_turn(key))
                except Busy:
                    ticket = None
                if ticket is not None:
                    await self._answer(ticket)
                    continue
            await asyncio.sleep(0.01)

    async def _recover(self) -> None:
        while True:
            for turn_id in await self._insist(self._lifecycle.recover):
                ticket = await self._insist(lambda turn_id=turn_id: self._lifecycle.resume_turn(turn_id))
                if ticket is not None:
                    say("resumed", turn_id)
                    await self._answer(ticket)
            await asyncio.sleep(0.05)

    async def _answer(self, ticket: TurnClaim) -> None:
        text = ticket.message.inbound.text
        say("began", ticket.turn_id, text)
        try:
            messages = [Message(Role.USER, text)]
            if uses_a_tool(text) and (result := await self._use_tool(ticket)) is not None:
                messages += [
                    Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c1", "look", "{}"),)),
                    Message(Role.TOOL, result, tool_call_id="c1"),
                ]
            if self._dice.random() < 0.1:
                change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, f"note in {text}")
                await self._insist(lambda: self._lifecycle.write_note(change, owner=OWNER, ref=ticket.ref))
            think_s = self._dice.choice((0.0, 0.001, 0.02))
            if self._orders.hold_s and text == message_text(self._orders.messages[1]):
                say("thinking", ticket.turn_id)
                think_s = self._orders.hold_s
            await asyncio.sleep(think_s)
            answer = f"answer to {text}"
            messages.append(Message(Role.ASSISTANT, answer))
            done = await self._insist(lambda: self._lifecycle.commit_turn(ticket, messages, answer))
            say("committed", done.ref.session_id, done.number, done.status.value, text)
        except Fenced:
            say("fenced", "turn", ticket.turn_id)

    async def _use_tool(self, ticket: TurnClaim) -> str | None:
        """Run a tool at most once: reuse a recorded result, and report a started call as unknown.

        Returns None if a boundary has cancelled the turn, which then starts no tool.
        """
        for row in ticket.tools:
            return row.result or "" if row.state is ToolState.DONE else UNKNOWN
        try:
            await self._insist(lambda: self._lifecycle.start_tool(ticket, "c1", "look", "{}"))
        except TurnCancelled:
            return None
        say("tool", ticket.turn_id)
        with open_back_end(self._orders.home) as back_end:
            back_end.execute("INSERT INTO tools VALUES (?, 'c1')", (ticket.turn_id,))
        back_end.close()
        result = f"seen for {ticket.turn_id}"
        await self._insist(lambda: self._lifecycle.finish_tool(ticket, "c1", result))
        return result

    async def _until_at_rest(self) -> None:
        database = connect(str(store_path(self._orders.home)))
        while True:
            await asyncio.sleep(0.05)
            if self._orders.drain and self._all_taken_in and next(database.execute(UNREST)) == (0,):
                database.close()
                return


async def main() -> None:
    orders = GatewayOptions(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for name in ("everthread.journal", "everthread.lanes"):
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(RefusedWriteReporter())
    store = await SqliteStore.open(store_path(orders.home))
    await Worker(orders, store).run()


if __name__ == "__main__":
    asyncio.run(main())
