"""One simulation: two processes on one store, some users, two memory back ends, and injected faults."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.domain.boundary import Boundary, Branch, Compress, New, Reset, Resume, Rewind
from everthread.domain.errors import EverthreadError
from everthread.domain.model import (
    Inbound,
    NoteAction,
    NoteTarget,
    SessionKey,
    SessionKind,
    SessionRef,
)
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, NoteChange
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.backends import Backend
from tests.simulator.coverage import OTHER_TURN
from tests.simulator.database import borrow_database, return_database
from tests.simulator.environment import Faults, SimClock
from tests.simulator.event_loop import PROCESS, SimLoop
from tests.simulator.fault_actions import PROVIDERS, FaultActions
from tests.simulator.file_actions import OWNERS, FileActions
from tests.simulator.forget_invariants import ForgottenFacts
from tests.simulator.home import Home
from tests.simulator.invariants import Evidence, check_everything
from tests.simulator.note_invariants import NoteLedger
from tests.simulator.process import KEYS, POLICIES, Server
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import Violation, require
from tests.simulator.scenario import FILE_ACTIONS, Step

T = TypeVar("T")

START_S = 1.0
TRACE_CHARS_MAX = 240
SETTLE_S_MAX = 900.0
LEASE_S_MAX = 60.0
UNTRACED = (asked.Recover, asked.ExpireDue, asked.PutPrefix)
"""Operations that would fill the trace."""
REPEATING = ("kill", "stop", "suspension", "clock ", "store busy", "disk full")
"""Starts of the names of faults after which a hook may be called again."""
UNNOTICED_S = 301.0
"""A time that is so far ahead of the clock is noticed."""
EXPIRED_S_MAX = 240.0
"""Longer than any idle time, the lease of a dead process and the time until a refused expiry is tried again."""


class Simulation(FaultActions, FileActions):
    """Run one schedule. `run` returns the violation, or None."""

    policies = POLICIES
    has_files = True

    def __init__(self, seed: int, schedule: list[Step], *, extended: bool = False) -> None:
        self.schedule = schedule
        self._seed = seed
        self._dice = random.Random(seed ^ 0x5EED)
        self.loop = SimLoop()
        self.clock = SimClock(self.loop)
        self.database = borrow_database()
        self.tables = UnitOfWork(SqliteDatabase(self.database))
        self.faults = Faults(extended)
        self.reference = ReferenceModel(KEYS, self.policies, all_hooks=extended, clock=self.clock if extended else None)
        self.backends = {name: Backend(name) for name in PROVIDERS}
        self.hooks_called: dict[SessionKey, list[tuple[str, str]]] = defaultdict(list)
        self._happened: list[tuple[float, tuple[object, ...]]] = []
        self.counts: dict[str, Counter[str]] = {"boundaries": Counter(), "totals": Counter(), "faults": self.faults.hit}
        if extended:
            self.counts["pairs"] = self.faults.coverage.pairs
        self.home: Home | None = None
        self._file_notes: NoteLedger | None = None
        if self.has_files and extended and any(step.action in FILE_ACTIONS for step in schedule):
            self.home = Home(self.tables, self.database)
            self._file_notes = NoteLedger(self.reference, self.database, self.tables, self.counts["totals"])
        self.forgotten = ForgottenFacts(self.reference, self.database, self.counts["totals"])
        self.violation: str | None = None
        self.time_was_bent = False
        self._wrong_by = 0.0
        self._ids = 0
        self._messages = 0
        self._boundaries_seen = 0
        self._servers: list[Server] = []
        self._started = 0

    def run(self) -> str | None:
        try:
            self.loop.run_until_complete(self._live())
        except Violation as error:
            self.violation = self.violation or str(error)
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            for server in self._servers:
                server.kill()
            # Let killed tasks finish. Their cleanup has no effect.
            self.loop.run_until_complete(asyncio.sleep(1.0))
            self.loop.close()
            return_database(self.database)
            if self.home is not None:
                self.home.remove()
        self.counts["totals"]["deliveries"] += sum(len(b.effects) for b in self.backends.values())
        self.counts["totals"]["crashes"] += self.faults.hit["kill"] + self.faults.hit["kill between statements"]
        self.counts["totals"]["attempts"] += sum(b.attempts for b in self.backends.values())
        return self.violation

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:05}"

    def log_step(self, *what: object) -> None:
        """Record a trace line. It is formatted only when read."""
        self._happened.append((self.loop.time(), what))

    @property
    def trace(self) -> list[str]:
        return [f"{at:8.3f} {' '.join(map(str, what))[:TRACE_CHARS_MAX]}" for at, what in self._happened]

    def attempt_began(self, provider: str, process: str) -> None:
        """Check that only the lease holder delivers, unless processes were stopped or the clock was moved."""
        rows = list(self.database.execute("SELECT holder FROM leases WHERE name = ?", (f"journal:{provider}",)))
        if not self.time_was_bent and rows != [(process,)]:
            self._violated(f"{process} delivers to {provider}, the lease is {rows}")

    def observe(self, operation: object | None, result: object) -> None:
        """Check a commit. The store calls this after each reported commit, before any other task runs."""
        if self.violation is not None:
            return
        try:
            new: list[BoundaryRow] = []
            while row := self.tables.sessions.boundary(self._boundaries_seen + 1):
                self._boundaries_seen += 1
                new.append(row)
                self.counts["boundaries"][row.kind] += 1
                self.log_step(row.kind, row.key, row.from_session, "->", row.to_session, "by", row.actor)
                self._cover(row)
            if isinstance(operation, asked.Commit):
                self.counts["totals"]["turns"] += 1
            if operation is not None and not isinstance(operation, UNTRACED):
                self.log_step(operation, "=", result)
            if isinstance(operation, asked.Recover):
                # Before the boundaries: recovery gives up delegated work after settling the turn that waits for it.
                self._see_settled()
            if self.faults.extended:
                self.forgotten.observe_result(operation, result)
            self.reference.observe_result(operation, result, new, self._active_at, self.clock.now())
            if self.home is not None:
                self._observe_files(self.home, operation, result)
            if isinstance(operation, asked.Abandon):
                self.counts["totals"]["abandoned"] += 1
                self._see_settled()
        except (AssertionError, LookupError) as error:
            self._violated(f"{type(error).__name__}: {error}")

    def _observe_files(self, home: Home, operation: object | None, result: object) -> None:
        assert self._file_notes is not None
        self._file_notes.observe_result(operation, result)
        match operation, result:
            case asked.SyncNotes(owner), tuple():
                self.counts["totals"]["note files synchronised"] += 1
                home.synchronised(owner)
            case asked.ForgetOperation(what, owner), int() if not isinstance(result, bool):
                texts = self.reference.words.note_texts[what.note_id] if isinstance(what, ForgetFact) else []
                home.forgot(what, owner, texts)
            case _:
                pass

    def _cover(self, row: BoundaryRow) -> None:
        process = PROCESS.get()
        name = process.name if process is not None else ""
        slots = [slot for slot in self.reference.slots.values() if slot.fate == "live" and slot.claim[0]]
        if any(slot.session == row.from_session and slot.claim[0] != name for slot in slots):
            self.faults.coverage.hit(row.kind, OTHER_TURN)
        sessions = (row.from_session, row.to_session)
        self.faults.coverage.crossed(row.kind, str(row.key), sessions, name, self.loop.time())

    def hook_called(self, key: SessionKey, hook: str, about: str) -> None:
        self.hooks_called[key].append((hook, about))

    def _see_settled(self) -> None:
        for turn_id in sorted(self.reference.slots):
            if self.tables.slots.get(turn_id) is None:
                self.reference.settled(turn_id, self.clock.now())

    def _active_at(self, session_id: str) -> float:
        session = self.tables.sessions.get(session_id)
        return session.active_at if session is not None else 0.0

    def _violated(self, what: str) -> None:
        if self.violation is None:
            self.violation = what
            self.log_step(f"VIOLATION {what}")

    # The schedule ---------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        for _ in range(2):
            self._start_server()
        pending: set[asyncio.Task[Any]] = set()
        for step in self.schedule:
            await asyncio.sleep(max(START_S + step.at - self.loop.time(), 0.0))
            self.log_step("*", step.action)
            task = asyncio.ensure_future(self._take(step, random.Random(step.dice)))
            pending.add(task)
            self._hold_so_far()
        await asyncio.wait(pending, timeout=60.0)
        for task in pending:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        await self._settle()
        self._hold_so_far()
        self._check()

    def _check(self) -> None:
        if self.faults.extended:
            self.forgotten.check_store()
        if self.home is not None:
            self.home.check(lambda owner: self.forgotten.words[owner], OWNERS)
        hit = self.faults.hit
        check_everything(
            Evidence(
                self.reference,
                self.database,
                self.tables,
                self.backends,
                self.hooks_called,
                self.time_was_bent,
                # Each may repeat the hook of every key that is being called, as may the suspension at the end.
                len(KEYS) * (1 + sum(hit[fault] for fault in hit if fault.startswith(REPEATING)))
                if self.faults.extended
                else None,
            )
        )

    def _hold_so_far(self) -> None:
        if self.violation is not None:
            raise Violation(self.violation)

    def _start_server(self) -> Server:
        self._started += 1
        server = self._new_server(f"p{self._started}", self._dice.getrandbits(32))
        self._servers = [other for other in self._servers if not other.dead] + [server]
        server.spawn(server.run()).add_done_callback(self._server_ended)
        return server

    def _new_server(self, name: str, seed: int) -> Server:
        return Server(self, name, seed)

    def _server_ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            self._violated(f"a process has crashed: {error!r}")

    def _server(self, dice: random.Random) -> Server:
        living = [server for server in self._servers if not server.dead]
        return dice.choice(living) if living else self._start_server()

    async def _take(self, step: Step, dice: random.Random) -> None:
        key = dice.choice(tuple(KEYS))
        match step.action:
            case "send":
                await self._send(key, dice)
            case "new" | "reset" | "resume" | "branch" | "compress" | "rewind":
                await self._on(dice, lambda server: self._cross(server, key, step.action, dice))
            case "note" | "delegate" | "recall" | "forget" | "forget_owner" | "forget_fact" | "retry" | "replay":
                await self._on(dice, lambda server: self._do(server, key, step.action, dice))
            case _:
                await self._inject_fault(step.action, dice)

    async def _on(self, dice: random.Random, work: Callable[[Server], Awaitable[None]]) -> bool:
        """Run work on a process. Return False if the process died meanwhile."""
        server = self._server(dice)

        async def handle() -> None:
            try:
                await work(server)
            except EverthreadError as error:
                self.log_step(f"{server.name}: {type(error).__name__}: {error}")

        task = server.spawn(handle())
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        return not task.cancelled()

    def _choose_owner(self, key: SessionKey, dice: random.Random) -> str:
        """Owner of a key; sometimes another user."""
        return dice.choice(OWNERS) if dice.random() < 0.12 else KEYS[key]

    async def _send(self, key: SessionKey, dice: random.Random) -> None:
        """Deliver a message until a process accepts it; sometimes deliver it again."""
        self._messages += 1
        name = f"m{self._messages}."
        owner = self._choose_owner(key, dice)
        facts = [text for whose, text, _ in self.reference.words.notes.values() if whose == owner]
        text = f"{name} {dice.choice(facts)}" if facts and dice.random() < 0.3 else name
        inbound = Inbound(key, owner, text, update_id=name)
        taken = 0
        while taken < (2 if dice.random() < 0.1 else 1):

            async def accept(server: Server) -> None:
                operation = asked.Accept(key, text, owner)
                await server.retry_until_done(lambda: server.does(operation, server.lifecycle.accept(inbound)))

            taken += await self._on(dice, accept)
            await asyncio.sleep(dice.random())
        self.counts["totals"]["messages"] += 1

    async def _cross(self, server: Server, key: SessionKey, action: str, dice: random.Random) -> None:
        owner = self._choose_owner(key, dice)
        boundary = self._boundary(key, owner, action, dice)
        if boundary is None:
            return
        work = server.lifecycle.cross(key, boundary, owner=owner)
        await server.does(asked.Cross(key, boundary), work)

    def _boundary(self, key: SessionKey, owner: str, action: str, dice: random.Random) -> Boundary | None:
        here = self.reference.sessions.get(self.reference.on[key] or "")
        match action:
            case "new":
                kind = self._kind(key, dice)
                return New(kind=kind, parent=self._parent(owner, dice) if kind is SessionKind.SUBAGENT else "")
            case "reset":
                return Reset()
            case "branch":
                return Branch()
            case "rewind":
                return Rewind(dice.choice((1, 1, 2, 5)))
            case "resume":
                anybodys = dice.random() < 0.1
                sessions = [s for s in self.reference.sessions.values() if not s.forgotten]
                mine = [s.id for s in sessions if anybodys or s.owner == owner]
                return Resume(dice.choice(mine)) if mine else Resume("")
            case _:
                stored = self.tables.sessions.get(here.id) if here else None
                if stored is None or stored.forgotten_seq is not None:
                    return None
                covers = dice.randint(stored.floor, stored.last_turn)
                return Compress(stored.id, stored.generation - (dice.random() < 0.1), "what was said", covers)

    def _kind(self, key: SessionKey, dice: random.Random) -> SessionKind | None:
        """Sometimes assign a key to scheduled or delegated work, and mostly back to chat soon."""
        if self.reference.kinds[key] is not SessionKind.CHAT:
            return dice.choice((SessionKind.CHAT, SessionKind.CHAT, None))
        return dice.choice((SessionKind.CRON, SessionKind.SUBAGENT)) if dice.random() < 0.08 else None

    def _parent(self, owner: str, dice: random.Random) -> str:
        """Session that delegates the work, rarely another owner's; sometimes none."""
        sessions = [
            s for s in self.reference.sessions.values() if not s.forgotten and s.kind is not SessionKind.SUBAGENT
        ]
        mine = [s.id for s in sessions if s.owner == owner or dice.random() < 0.1]
        return dice.choice(mine) if mine and dice.random() < 0.8 else ""

    async def _do(self, server: Server, key: SessionKey, action: str, dice: random.Random) -> None:
        ref = await server.lifecycle.current(key)
        provider = dice.choice(PROVIDERS)
        match action:
            case "retry":
                await server.memory.journal.retry(provider)
            case "replay":
                sessions = [*self.reference.sessions, None]
                await server.memory.journal.replay(provider, dice.choice(sessions))
            case "forget_owner":
                owner = KEYS[key]
                await server.does(
                    asked.ForgetOperation(ForgetOwner(), owner), server.lifecycle.forget(ForgetOwner(), owner=owner)
                )
            case _ if ref is None:
                return
            case "note":
                change = NoteChange(NoteAction.ADD, NoteTarget.USER, self._choose_word())
                await server.write_note(change, ref.owner, ref if dice.random() < 0.8 else None)
            case "delegate":
                text = self._choose_word()
                child = f"child of {text}"
                work = server.lifecycle.record_delegation(ref, text, "done", child)
                await server.does(asked.Delegate(ref, text, child), work)
                if dice.random() < 0.3:
                    # A repeated record after a crash counts once.
                    await server.lifecycle.record_delegation(ref, text, "done", child)
            case "recall":
                await self._recall(server, key, ref)
            case _:
                await self._forget(server, ref.owner, action, dice)

    async def _forget(self, server: Server, owner: str, action: str, dice: random.Random) -> None:
        if action == "forget_fact":
            notes = [note_id for note_id, (whose, _, _) in self.reference.words.notes.items() if whose == owner]
            what = ForgetFact(dice.choice(notes)) if notes else None
        else:
            what = ForgetSession(dice.choice([s.id for s in self.reference.sessions.values() if s.owner == owner]))
        if what is not None:
            began, errors = self.loop.time(), self._store_errors()
            await server.does(asked.ForgetOperation(what, owner), server.lifecycle.forget(what, owner=owner))
            saved = self.home is not None and self.home.edited_at >= began
            if self.home is not None and isinstance(what, ForgetFact) and not saved and self._store_errors() == errors:
                # Only its own words: another request may be in progress.
                words = set(self.reference.words.note_texts[what.note_id]) & self.forgotten.words[owner]
                self.home.check_forgotten(owner, words)
            self.counts["totals"]["facts forgotten"] += isinstance(what, ForgetFact)

    def _store_errors(self) -> int:
        return self.faults.hit["store busy"] + self.faults.hit["disk full"]

    async def _inject_forget_in_turn(self, dice: random.Random) -> None:
        """Forget a fact while a turn of its owner runs."""
        until = self.loop.time() + 20.0
        while not (running := [slot for slot in self.reference.slots.values() if slot.claim[0]]):
            if self.loop.time() > until:
                return
            await asyncio.sleep(0.2)
        owner = self.reference.sessions[dice.choice(running).session].owner
        await self._on(dice, lambda server: self._forget(server, owner, "forget_fact", dice))

    def _choose_word(self) -> str:
        self._messages += 1
        return f"w{self._messages}."

    async def _recall(self, server: Server, key: SessionKey, ref: SessionRef) -> None:
        recalling = asyncio.ensure_future(server.memory.recall("anything", ref=ref))
        await self.clock.sleep(server.random.choice((0.0, 0.1, 3.0)))
        here = await server.lifecycle.current(key)
        if here is None:
            recalling.cancel()
            return
        recall = await recalling
        self.counts["totals"]["recalls"] += 1
        for item in recall.items if recall.usable_at(here) else ():
            require(item.text == f"for {here.session_id} of {here.owner}", f"recall {item.text!r} was used at {here}")

    # The end --------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """End all faults and wait until everything has arrived, then retry parked entries and wait again."""
        self.faults.busy = self.faults.full = 0
        self.faults.deaths.clear()
        self.faults.freezes.clear()
        self.faults.hooks.clear()
        self.faults.provider.clear()
        for server in self._servers:
            server.frozen_until = 0.0
            server.kill_after_statements = None
        if all(server.dead for server in self._servers):
            self._start_server()
        if self.faults.extended:
            self._correct_clock(self._wrong_by)
        else:
            self._finish_dead_processes()
        await self._until_quiet()
        for provider in PROVIDERS:
            self._parked_is_kept(provider)
            await self._on(self._dice, lambda server, provider=provider: _retry(server, provider))
        await self._until_quiet()
        if self.faults.extended:
            await self._until_expired()
        if self.home is not None:
            for owner in OWNERS:
                await self._synchronise(self._dice, owner)
            await self._until_quiet()

    async def _until_expired(self) -> None:
        """Check that every idle session expires, whatever the clock has shown in the meantime."""
        # Nothing is in progress, so the suspension excuses nothing that was done before it.
        bent, self.time_was_bent = self.time_was_bent, True
        self.clock.suspend(max(policy.idle_s or 0.0 for policy in map(self.policies.of, KEYS)) + UNNOTICED_S)
        until = self.loop.time() + EXPIRED_S_MAX
        while left := [key for key in KEYS if self.policies.of(key).idle_s and self.reference.on[key]]:
            self._hold_so_far()
            require(self.loop.time() < until, f"{left} should have expired")
            await asyncio.sleep(2.0)
        await self._until_quiet()
        self.time_was_bent = bent

    def _finish_dead_processes(self) -> None:
        """Delete leases of dead processes that a clock moved back has extended, as an operator would."""
        living = [server.name for server in self._servers if not server.dead]
        self.database.execute(
            f"DELETE FROM leases WHERE expires_at > ? AND holder NOT IN ({', '.join('?' * len(living))})",
            (self.clock.now() + LEASE_S_MAX, *living),
        )

    async def _until_quiet(self) -> None:
        deadline = self.loop.time() + SETTLE_S_MAX
        while not self._quiet():
            self._hold_so_far()
            require(self.loop.time() < deadline, f"the town does not come to rest: {self._pending_work()}")
            await asyncio.sleep(3.0)

    def _quiet(self) -> bool:
        return not any(self._pending_work().values())

    def _pending_work(self) -> dict[str, int]:
        def count(sql: str) -> int:
            return next(iter(self.database.execute(sql)))[0]

        return {
            "waiting": sum(len(rows) for rows in self.reference.waiting.values()),
            "running": len(self.reference.slots),
            "hooks": count("SELECT COUNT(*) FROM hook_calls"),
            "unread": count("SELECT COUNT(*) FROM providers p WHERE scanned_pos < (SELECT MAX(pos) FROM log)"),
            "lanes": count("SELECT COUNT(*) FROM cursors WHERE due_at IS NOT NULL"),
            "again": count("SELECT COUNT(*) FROM redeliveries WHERE due_at IS NOT NULL"),
        }

    def _parked_is_kept(self, provider: str) -> None:
        """Check that rejected entries stay visible and can be retried, unless they were replayed since."""
        backend = self.backends[provider]
        reported = list(self.database.execute("SELECT 1 FROM incidents WHERE source = ?", (f"memory:{provider}",)))
        parked = [row for row in self.tables.cursors.redeliveries(provider) if row.due_at is None]
        forgotten = self.reference.words.forgotten or any(
            session.forgotten for session in self.reference.sessions.values()
        )
        require(reported or not parked or forgotten, f"nobody was told that {provider} rejected {parked}")
        empty = {session.id: self.reference.forgotten_notes(session) for session in self.reference.logs()}
        for key in backend.rejected - backend.keys:
            session_id, seq, _, replay = key.rsplit(":", 3)
            cursor = self.tables.cursors.get(provider, session_id)
            session = self.tables.sessions.get(session_id)
            rows = {(row.seq, row.replay) for row in self.tables.cursors.redeliveries(provider, session_id)}
            require(
                (int(seq), int(replay)) in rows
                or (cursor is not None and cursor.replay > int(replay))
                or (session is not None and session.forgotten_seq is not None)
                or int(seq) in empty[session_id],
                f"{key} was rejected and is gone",
            )


async def _retry(server: Server, provider: str) -> None:
    await server.memory.journal.retry(provider)
