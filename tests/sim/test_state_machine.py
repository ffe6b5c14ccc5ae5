"""Test the lifecycle as a state machine: boundaries, turns, deliveries and crashes in any order, against a model in
dicts.

The model predicts the result of each operation, including refusals: invariants alone would miss a boundary that
silently does nothing. One process runs at a time and time passes only in explicit steps, so the model can ignore both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from tests.simulator.backends import Backend, Effect, SimProvider
from tests.simulator.database import fresh_database
from tests.simulator.environment import Faults, SimClock, SimProcess, SimStore
from tests.simulator.event_loop import SimLoop

from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.domain.boundary import Boundary, Branch, Compress, Expire, New, Refusal, Reset, Resume, Rewind
from everthread.domain.errors import Busy
from everthread.domain.events import (
    Event,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
)
from everthread.domain.model import (
    ChatType,
    Fate,
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    Role,
    SessionKey,
    SessionRef,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import BoundaryResult, Lifecycle, NoteChange, TurnClaim
from everthread.lifecycle import boundaries as crossing
from everthread.memory.delivery import DeliveryService
from everthread.memory.delivery_results import Limits
from everthread.memory.provider_calls import Caller
from everthread.store.unit_of_work import UnitOfWork

T = TypeVar("T")

pytestmark = pytest.mark.timeout(120)

OWNER = "me"
IDLE_S = 60.0
GONE_S = 40.0
"""After this time, the leases of a dead process have expired."""
DM = SessionKey("main", "cli", ChatType.DM, "1")
OTHER_DM = SessionKey("main", "telegram", ChatType.DM, "2")
GROUP = SessionKey("main", "telegram", ChatType.GROUP, "3")
KEYS = (DM, OTHER_DM, GROUP)
POLICIES = ResetPolicies(ResetPolicy(), by_chat_type={ChatType.GROUP: ResetPolicy(idle_s=IDLE_S)})
LIMITS = Limits(attempt_s_max=2.0, backoff_s=0.5, backoff_s_max=4.0, breaker_failures=4, breaker_s=3.0)
PROVIDER = "alpha"
LANE = f"journal:{PROVIDER}"


# The model ----------------------------------------------------------------------------------------------------------

Entry = tuple[Any, ...]


@dataclass
class Talk:
    """A session in the model, independent of the code under test."""

    id: str
    active_at: float
    parent: str = ""
    shown: list[tuple[int, str]] = field(default_factory=list)
    last: int = 0
    floor: int = 0
    log: list[Entry] = field(default_factory=list)
    dirty: bool = False
    ended: str | None = None
    continued_by: str | None = None

    def write(self, *entry: Any) -> None:
        self.log.append(entry)
        self.dirty = True

    def close(self) -> None:
        if self.dirty:
            self.log.append(("close", tuple(text for _, text in self.shown)))
            self.dirty = False


@dataclass
class Running:
    key: SessionKey
    talk: Talk
    text: str
    fate: str = "live"


class Model:
    def __init__(self) -> None:
        self.talks: dict[str, Talk] = {}
        self.on: dict[SessionKey, Talk | None] = dict.fromkeys(KEYS)
        self.epoch: dict[SessionKey, int] = dict.fromkeys(KEYS, 0)
        self.pending: dict[SessionKey, str | None] = dict.fromkeys(KEYS)
        self.waiting: dict[SessionKey, list[tuple[str, float]]] = {key: [] for key in KEYS}
        self.running: dict[str, Running] = {}
        self.fates: dict[str, str] = {}
        self.served: dict[str, SessionKey] = {}
        """Sessions served by this process, with the first key of each."""

    def keys_on(self, talk: Talk) -> list[SessionKey]:
        return [key for key, other in self.on.items() if other is talk]

    def live_in(self, talk: Talk) -> Running | None:
        return next((one for one in self.running.values() if one.talk is talk and one.fate == "live"), None)

    def due(self, key: SessionKey) -> float | None:
        """Expiry time of the key's session."""
        talk = self.on[key]
        return talk.active_at + IDLE_S if key is GROUP and talk is not None else None

    def tip(self, talk: Talk) -> Talk:
        return self.tip(self.talks[talk.continued_by]) if talk.continued_by else talk

    # Effects of boundaries. The model has predicted that each of these is not refused.

    def refusal(self, key: SessionKey, boundary: Boundary, now: float) -> Refusal | None:
        here = self.on[key]
        match boundary:
            case New() | Reset():
                return None
            case Resume(target):
                return Refusal.ALREADY_THERE if self.tip(self.talks[target]) is here else None
            case Compress() if here is None:
                return Refusal.STALE
            case _ if here is None:
                return Refusal.NOTHING_THERE
            case Compress():
                return Refusal.TURN_RUNNING if self.live_in(here) else None
            case Rewind():
                return None if here.shown or self.live_in(here) else Refusal.NOTHING_THERE
            case Expire():
                return self._why_not_expired(key, here, now)
            case _:
                return None

    def _why_not_expired(self, key: SessionKey, here: Talk, now: float) -> Refusal | None:
        due = self.due(key)
        if due is None or now < due:
            return Refusal.NOT_DUE
        if self.live_in(here):
            return Refusal.TURN_RUNNING
        return Refusal.WORK_WAITING if self.waiting[key] and self.waiting[key][0][1] < due else None

    def crossed(self, key: SessionKey, boundary: Boundary, new_id: str, now: float) -> None:
        here = self.on[key]
        match boundary:
            case New() | Reset():
                name, cause = ("new", "new_session") if isinstance(boundary, New) else ("reset", "reset")
                opened = Talk(new_id, now, log=[("opened", "", True, self.pending[key] or cause)])
                self._set_aside(key, here or opened)
                self._leave(key, name)
                self._arrive(key, opened)
            case Resume(target):
                found = self.tip(self.talks[target])
                self._set_aside(key, here or found)
                self._leave(key, None)
                found.log.append(("opened", here.id if here else found.parent, False, "resume"))
                found.ended, found.active_at = None, now
                self._arrive(key, found)
            case Branch():
                assert here is not None
                self._set_aside(key, here)
                self._leave(key, None)
                self._arrive(key, self._child(here, new_id, now, here.floor, "branch"))
            case Compress(covers_to=covers_to):
                assert here is not None
                here.close()
                here.ended, here.continued_by = "compressed", new_id
                child = self._child(here, new_id, now, covers_to, "compression")
                if here.id in self.served:
                    self.served[new_id] = self.served.pop(here.id)
                for other in self.keys_on(here):
                    self._arrive(other, child)
            case Rewind(turns):
                assert here is not None
                self._take_back(here, turns)
                self.epoch[key] += 1
            case _:
                self._leave(key, "idle")
                self._arrive(key, None)
                self.pending[key] = "idle"

    def _take_back(self, here: Any, turns: int) -> None:
        """Undo turns, the running turn first."""
        running = self.live_in(here)
        kept = len(here.shown) - min(turns - bool(running), len(here.shown))
        hidden = tuple(number for number, _ in here.shown[kept:])
        del here.shown[kept:]
        if hidden:
            here.write("rewind", hidden)
        if running:
            running.fate = "hidden"

    def _leave(self, key: SessionKey, ends: str | None) -> None:
        here = self.on[key]
        if here is None:
            return
        here.close()
        self.served.pop(here.id, None)
        if ends and self.keys_on(here) == [key]:
            here.ended = ends
        running = self.live_in(here)
        if running and running.key == key:
            running.fate = "late"

    def _child(self, parent: Talk, new_id: str, now: float, floor: int, cause: str) -> Talk:
        shown = [turn for turn in parent.shown if turn[0] > floor]
        return Talk(new_id, now, parent.id, shown, parent.last, floor, [("opened", parent.id, False, cause)])

    def _arrive(self, key: SessionKey, talk: Talk | None) -> None:
        if talk is not None:
            self.talks[talk.id] = talk
        self.on[key] = talk
        self.epoch[key] += 1
        self.pending[key] = None

    def _set_aside(self, key: SessionKey, into: Talk) -> None:
        for text, _ in self.waiting[key]:
            into.last += 1
            self.fates[text] = f"set_aside in {into.id}"
        self.waiting[key].clear()

    # Turns

    def expects_to_begin(self, key: SessionKey) -> tuple[bool, bool, bool]:
        """Predict for the key's next message: session expires, session opens, a turn is already running."""
        here, due = self.on[key], self.due(key)
        busy = here is not None and self.live_in(here) is not None
        expires = due is not None and self.waiting[key][0][1] >= due and not busy
        return expires, expires or here is None, busy

    def begun(self, key: SessionKey, claim: TurnClaim, now: float) -> None:
        expires, opens, _ = self.expects_to_begin(key)
        text, accepted_at = self.waiting[key].pop(0)
        if expires:
            self._leave(key, "idle")
            self._arrive(key, None)
            self.pending[key] = "idle"
        if opens:
            cause = self.pending[key] or "new_session"
            self._arrive(key, Talk(claim.ref.session_id, now, log=[("opened", "", True, cause)]))
        talk = self.on[key]
        assert talk is not None
        assert (claim.message.inbound.text, claim.ref.session_id) == (text, talk.id)
        assert claim.ref.epoch == self.epoch[key]
        talk.active_at = max(talk.active_at, accepted_at)
        self.running[claim.turn_id] = Running(key, talk, text)
        self.served.setdefault(talk.id, key)

    def stored(self, turn_id: str, now: float) -> str:
        """Store a running turn. Return its status."""
        turn = self.running.pop(turn_id)
        talk = turn.talk
        talk.last += 1
        if turn.fate != "hidden":
            talk.shown.append((talk.last, turn.text))
            talk.write("turn", talk.last, turn.text)
        if turn.fate == "live":
            talk.active_at = max(talk.active_at, now)
        else:
            self.closed_if_left(talk)
        status = "done" if turn.fate == "live" else turn.fate
        self.fates[turn.text] = f"{status} in {talk.id}"
        return status

    def closed_if_left(self, talk: Talk) -> None:
        if not self.keys_on(talk) and all(turn.talk is not talk for turn in self.running.values()):
            talk.close()

    def suspended(self, close_memory: bool) -> None:
        for key in set(self.served.values()):
            here = self.on[key]
            if here is not None and close_memory:
                self._set_aside(key, here)
                here.close()
        self.served.clear()


# Observed state in the model's terms --------------------------------------------------------------------------------


def told(event: Event) -> Entry:
    match event:
        case SessionOpened():
            return ("opened", event.parent_id, event.reset, event.reason.value)
        case TurnCommitted():
            return ("turn", event.turn.number, event.turn.user_text)
        case SessionRewound():
            return ("rewind", event.turns)
        case SessionClosed():
            return ("close", tuple(turn.user_text for turn in event.view.turns))
        case NoteWritten():
            return ("note", event.note.content)
        case _:
            raise AssertionError(event)


def taken(effect: Effect) -> Entry:
    facts = effect.facts
    match effect.kind:
        case "opened":
            return ("opened", facts["parent"], facts["reset"], facts["reason"])
        case "turn":
            return ("turn", facts["number"], facts["text"])
        case "rewind":
            return ("rewind", facts["turns"])
        case "close":
            assert facts["missing"] == ()
            return ("close", facts["shown"])
        case _:
            return (effect.kind, facts["text"])


# The machine --------------------------------------------------------------------------------------------------------


class PromptProcess(SimProcess):
    """A process whose external calls take no time, unless a fault is injected."""

    async def pause(self) -> None:
        self.check()


class LifecycleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.clock = SimClock(self.loop)
        self.database = fresh_database()
        self.tables = UnitOfWork(SqliteDatabase(self.database))
        self.faults = Faults()
        self.backend = Backend(PROVIDER)
        self.model = Model()
        self.tickets: dict[str, TurnClaim] = {}
        self.ids = 0
        self.texts = 0
        self.processes = 0
        self._start()

    # Processes

    def _start(self) -> None:
        self.processes += 1
        self.process = PromptProcess(f"p{self.processes}", self.processes)
        store = SimStore(self.database, self.process, self.faults, lambda operation, result: None)
        self.lifecycle = Lifecycle(store, self.clock, self._new_id, holder=self.process.name, policies=POLICIES)
        caller = Caller(SimProvider(self.backend, self.process, self.faults, lambda provider, process: None))
        self.journal = DeliveryService(store, self.clock, {PROVIDER: caller}, random=lambda: 0.5, limits=LIMITS)
        self._run(self.journal.register())
        name, now = self.process.name, self.clock.now()
        lease = self._run(store.write(lambda uow: uow.leases.acquire(LANE, name, now, 10 * GONE_S)))
        assert lease is not None
        self.lease = lease
        self.store = store

    def _new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:05}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            return await self.process.spawn(work)

        return self.loop.run_until_complete(run())

    def _pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def _die(self) -> None:
        self.process.kill()
        # Cleanup of killed tasks has no effect, but must finish.
        self._pass_time(10 * GONE_S + GONE_S)
        self._start()
        again = self._run(self.lifecycle.recover())
        live = sorted(turn_id for turn_id, turn in self.model.running.items() if turn.fate == "live")
        assert list(again) == live
        for turn_id in sorted(set(self.model.running) - set(live)):
            self.model.stored(turn_id, self.clock.now())
        self.model.served.clear()
        self.tickets.clear()
        for turn_id in live:
            claim = self._run(self.lifecycle.resume_turn(turn_id))
            assert claim is not None
            self.tickets[turn_id] = claim
            turn = self.model.running[turn_id]
            self.model.served.setdefault(turn.talk.id, turn.key)

    # Boundaries

    def _cross(self, key: SessionKey, boundary: Boundary) -> None:
        now = self.clock.now()
        refusal = self.model.refusal(key, boundary, now)
        crossing = self._run(self.lifecycle.cross(key, boundary, owner=OWNER))
        assert crossing.refusal == refusal
        if refusal is None:
            self._applied(key, boundary, crossing, now)

    def _applied(self, key: SessionKey, boundary: Boundary, crossing: BoundaryResult, now: float) -> None:
        aside = [row.inbound.text for row in crossing.set_aside]
        waited = [text for text, _ in self.model.waiting[key]]
        new_id = crossing.ref.session_id if crossing.ref else ""
        opens = isinstance(boundary, New | Reset | Branch | Compress)
        assert (new_id not in self.model.talks) == opens or not new_id
        self.model.crossed(key, boundary, new_id, now)
        here = self.model.on[key]
        assert new_id == (here.id if here else "")
        assert aside == (waited if not self.model.waiting[key] else [])

    @rule(key=st.sampled_from(KEYS))
    def new(self, key: SessionKey) -> None:
        self._cross(key, New())

    @rule(key=st.sampled_from(KEYS))
    def reset(self, key: SessionKey) -> None:
        self._cross(key, Reset())

    @rule(key=st.sampled_from(KEYS))
    def branch(self, key: SessionKey) -> None:
        self._cross(key, Branch())

    @rule(key=st.sampled_from(KEYS), turns=st.integers(1, 3))
    def rewind(self, key: SessionKey, turns: int) -> None:
        self._cross(key, Rewind(turns))

    @precondition(lambda self: self.model.talks)
    @rule(key=st.sampled_from(KEYS), which=st.integers(0, 50))
    def resume(self, key: SessionKey, which: int) -> None:
        self._cross(key, Resume(sorted(self.model.talks)[which % len(self.model.talks)]))

    @rule(key=st.sampled_from(KEYS), keeps=st.integers(0, 3))
    def compress(self, key: SessionKey, keeps: int) -> None:
        here = self.model.on[key]
        stored = self.tables.sessions.get(here.id) if here else None
        if here is None or stored is None:
            self._cross(key, Compress("nowhere", 0, "what was said", 0))
        else:
            covers_to = max(here.floor, here.last - keeps)
            self._cross(key, Compress(here.id, stored.generation, "what was said", covers_to))

    @rule(key=st.sampled_from(KEYS), after_s=st.sampled_from((0.0, IDLE_S / 2, IDLE_S)))
    def expire(self, key: SessionKey, after_s: float) -> None:
        self._pass_time(after_s)
        self._cross(key, Expire(POLICIES.of(key), self.clock.now()))

    # Turns

    @rule(key=st.sampled_from(KEYS), after_s=st.sampled_from((0.0, 0.0, 1.0, IDLE_S)))
    def send(self, key: SessionKey, after_s: float) -> None:
        self._pass_time(after_s)
        self._send(key)

    @rule(key=st.sampled_from(KEYS), messages=st.integers(1, 4))
    def converse(self, key: SessionKey, messages: int) -> None:
        """Run some turns and accept one more message, whose turn keeps running."""
        for _ in range(messages):
            self._send(key)
        while self.model.waiting[key] and self._begin(key):
            if self.model.waiting[key]:
                self._commit(max(self.tickets))

    def _send(self, key: SessionKey) -> None:
        self.texts += 1
        text = f"m{self.texts}"
        inbound = Inbound(key, OWNER, text, update_id=text)
        row, new = self._run(self.lifecycle.accept(inbound))
        # The platform redelivers a message that was already accepted.
        assert (new, self._run(self.lifecycle.accept(inbound))) == (True, (row, False))
        self.model.waiting[key].append((text, row.accepted_at))
        self.model.fates[text] = "waiting"

    @precondition(lambda self: any(self.model.waiting.values()))
    @rule(which=st.integers(0, 2))
    def begin_a_turn(self, which: int) -> None:
        keys = [key for key in KEYS if self.model.waiting[key]]
        self._begin(keys[which % len(keys)])

    def _begin(self, key: SessionKey) -> bool:
        _, opens, busy = self.model.expects_to_begin(key)
        if busy:
            with pytest.raises(Busy):
                self._run(self.lifecycle.begin_turn(key))
            return False
        claim = self._run(self.lifecycle.begin_turn(key))
        assert claim is not None
        assert opens == (claim.ref.session_id not in self.model.talks)
        self.model.begun(key, claim, self.clock.now())
        self.tickets[claim.turn_id] = claim
        return True

    @precondition(lambda self: self.tickets)
    @rule(which=st.integers(0, 5))
    def commit_a_turn(self, which: int) -> None:
        self._commit(sorted(self.tickets)[which % len(self.tickets)])

    def _commit(self, turn_id: str) -> None:
        claim = self.tickets.pop(turn_id)
        answer = f"answer to {claim.message.inbound.text}"
        messages = (Message(Role.USER, claim.message.inbound.text), Message(Role.ASSISTANT, answer))
        done = self._run(self.lifecycle.commit_turn(claim, messages, answer))
        talk, now = self.model.running[turn_id].talk, self.clock.now()
        status = self.model.stored(turn_id, now)
        assert (done.status, done.number, done.ref.session_id) == (status, talk.last, talk.id)
        assert done.reply is not None
        assert done.reply.state == ("ready" if status == "done" else "withheld")

    @precondition(lambda self: self.model.talks)
    @rule(which=st.integers(0, 50))
    def write_a_note(self, which: int) -> None:
        """Write a note in a session that may have been left long ago."""
        talk = self.model.talks[sorted(self.model.talks)[which % len(self.model.talks)]]
        self.texts += 1
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, f"note {self.texts}")
        ref = SessionRef(talk.id, 0, DM, 0, OWNER)
        self._run(self.lifecycle.write_note(change, owner=OWNER, ref=ref))
        talk.write("note", change.content)
        self.model.closed_if_left(talk)

    # Memory and faults

    @rule(after_s=st.sampled_from((0.0, 1.0, 5.0)))
    def deliver(self, after_s: float) -> None:
        self._pass_time(after_s)
        self._run(self.journal.drain(PROVIDER, self.lease))
        self._run(self.journal.idle())

    @rule(faults=st.lists(st.sampled_from(("error", "lost", "lost", "slow", "hang")), min_size=1, max_size=5))
    def have_trouble_with_the_provider(self, faults: list[str]) -> None:
        self.faults.provider[PROVIDER] = list(faults)

    @rule(
        how=st.sampled_from(("idle", "deliver", "new", "branch", "begin", "commit")),
        key=st.sampled_from(KEYS),
        after=st.integers(0, 20),
    )
    def crash_and_restart(self, how: str, key: SessionKey, after: int) -> None:
        """Crash after so many statements. Uncommitted work is rolled back, so the model only applies committed work."""
        self.process.kill_after_statements = after
        try:
            match how:
                case "deliver":
                    self.deliver(0.0)
                case "new":
                    self._cross(key, New())
                case "branch":
                    self._cross(key, Branch())
                case "begin" if self.model.waiting[key]:
                    self._begin(key)
                case "commit" if self.tickets:
                    self._commit(max(self.tickets))
                case _:
                    pass
        except asyncio.CancelledError:
            assert self.process.dead
        self._die()

    @rule(close_memory=st.booleans())
    def stop_and_restart(self, close_memory: bool) -> None:
        self._run(self.lifecycle.suspend(close_memory=close_memory))
        self.model.suspended(close_memory)
        self._die()

    # Invariants

    @invariant()
    def open_sessions_match_the_model(self) -> None:
        for key, talk in self.model.on.items():
            binding = self.tables.sessions.binding(key)
            found = (binding.session_id, binding.epoch, binding.pending) if binding else (None, 0, None)
            assert found == (talk.id if talk else None, self.model.epoch[key], self.model.pending[key])
            waiting = [row.inbound.text for row in self.tables.inbox.waiting(key)]
            assert waiting == [text for text, _ in self.model.waiting[key]]
        assert {row[0] for row in self.database.execute("SELECT id FROM sessions")} == set(self.model.talks)
        for talk in self.model.talks.values():
            stored = self.tables.sessions.get(talk.id)
            assert stored is not None
            assert (stored.end_reason, stored.last_turn) == (talk.ended, talk.last)
            assert (stored.dirty, stored.log_seq) == (talk.dirty, len(talk.log))
            assert stored.active_at == talk.active_at
            shown = [(turn.number, turn.user_text) for turn in self.tables.turns.view(stored).turns]
            assert shown == talk.shown, f"{talk.id} shows {shown}, not {talk.shown}"
            for seq, entry in enumerate(talk.log, 1):
                found = self.tables.log.entry(talk.id, seq)
                assert found is not None
                assert told(self.tables.log.event(found, ())) == entry

    @invariant()
    def no_dirty_session_is_ended_without_a_close(self) -> None:
        """Sessions with a running turn are exempt: the turn closes them when it is stored."""
        unclosed = self.database.execute(
            "SELECT id FROM sessions WHERE dirty_seq > closed_seq AND (ended_at IS NOT NULL OR NOT EXISTS "
            "(SELECT 1 FROM bindings WHERE session_id = sessions.id)) "
            "AND NOT EXISTS (SELECT 1 FROM slots WHERE session_id = sessions.id)"
        )
        assert list(unclosed) == []

    @invariant()
    def provider_saw_a_gapless_prefix(self) -> None:
        for session_id, effects in self._effects().items():
            assert [effect.delivery.seq for effect in effects] == list(range(1, len(effects) + 1))
            assert [taken(effect) for effect in effects] == self.model.talks[session_id].log[: len(effects)]

    def _effects(self) -> dict[str, list[Effect]]:
        found: dict[str, list[Effect]] = {talk_id: [] for talk_id in self.model.talks}
        for effect in self.backend.effects:
            found[effect.ref.session_id].append(effect)
        return found

    def teardown(self) -> None:
        try:
            self._come_to_rest()
        finally:
            self.process.kill()
            self._pass_time(1.0)
            self.loop.close()
            self.database.close()

    def _come_to_rest(self) -> None:
        self.faults.provider.clear()
        self.process.kill_after_statements = None
        while self.tickets or any(self.model.waiting.values()):
            for turn_id in sorted(self.tickets):
                self._commit(turn_id)
            for key in KEYS:
                if self.model.waiting[key]:
                    self._begin(key)
        for _ in range(40):
            self.deliver(5.0)
            if not list(self.database.execute("SELECT 1 FROM cursors WHERE due_at IS NOT NULL")):
                break
        self.open_sessions_match_the_model()
        self.no_dirty_session_is_ended_without_a_close()
        for session_id, effects in self._effects().items():
            assert [taken(effect) for effect in effects] == self.model.talks[session_id].log
        rows = self.database.execute(
            "SELECT m.content, t.status || ' in ' || t.session_id FROM messages m JOIN turns t ON t.id = m.id / 4096 "
            "WHERE m.role = 'user'"
        )
        homes = list(rows)
        assert dict(homes) == self.model.fates
        assert len(homes) == len(self.model.fates)
        assert list(self.database.execute("SELECT 1 FROM slots")) == []


EXAMPLES = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("number", range(1, 9))
def test_the_lifecycle_matches_the_model(number: int) -> None:
    class Seeded(LifecycleMachine): ...

    # The same examples in every run, and different ones per number.
    run_state_machine_as_test(seed(number)(Seeded), settings=EXAMPLES)


# Tests of the machine -----------------------------------------------------------------------------------------------

ONCE = settings(EXAMPLES, max_examples=100, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.parametrize("kind", [New, Reset, Resume, Branch, Compress, Rewind, Expire])
def test_a_boundary_that_silently_does_nothing_is_detected(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan

    def nothing(place: Any, boundary: Any, **more: Any) -> Any:
        step = plan(place, boundary, **more)
        return replace(step, refusal=step.refusal or Refusal.NOTHING_THERE) if isinstance(boundary, kind) else step

    monkeypatch.setattr(crossing, "plan", nothing)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LifecycleMachine, settings=ONCE)


def test_a_missing_close_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan
    monkeypatch.setattr(crossing, "plan", lambda *args, **more: replace(plan(*args, **more), closes=False))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LifecycleMachine, settings=ONCE)


def test_a_reply_to_a_session_that_was_left_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan
    monkeypatch.setattr(crossing, "plan", lambda *args, **more: replace(plan(*args, **more), fate=Fate.LIVE))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LifecycleMachine, settings=ONCE)
