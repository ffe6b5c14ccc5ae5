"""Simulation with agents: compression, review and delegated work under faults."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from everthread.agent.compression.policy import size_of
from everthread.agent.events import Compressed, CompressionFailed, TurnEnded, TurnEvent
from everthread.agent.prompt import decode_prompt
from everthread.domain.errors import EverthreadError
from everthread.domain.model import SUBAGENT_PLATFORM, SessionKey, SessionKind, Turn
from everthread.lifecycle import CommittedTurn, ForgetSession
from everthread.ports.context import Middle, Rollover
from everthread.ports.model import Request
from tests.simulator import operations as asked
from tests.simulator.agent_invariants import ReviewLedger, check_agents, check_helpers
from tests.simulator.agent_model import FAULTS, Row, SimModelState, head_of, summed_up, unpaired
from tests.simulator.agent_process import POLICIES, TOOLS, AgentServer
from tests.simulator.environment import EPOCH, Killed
from tests.simulator.event_loop import PROCESS
from tests.simulator.note_invariants import NoteLedger
from tests.simulator.process import KEYS, Server
from tests.simulator.reference_types import Violation, require
from tests.simulator.scenario import EXTRA_ACTIONS, Step, make_schedule
from tests.simulator.simulation import Simulation
from tests.simulator.summary_invariants import Summaries
from tests.simulator.turn_invariants import CANCELLED_S_MAX, TurnEffects

STEP_S = 7.0
PATIENCE_S = 30.0
SOURCE_S = 100.0
LARGE_BYTES = 15_000
COOL_DOWN_S = 1_600.0
"""Longer than any retry delay of an agent."""
ACTIONS = {
    "send": 24.0,
    "new": 0.8,
    "reset": 0.2,
    "resume": 1.2,
    "branch": 0.8,
    "rewind": 1.2,
    "compress": 1.5,
    "interrupt": 1.2,
    "note": 0.4,
    "forget": 0.3,
    "forget_source": 0.8,
    "forget_owner": 0.06,
    "forget_fact": 0.5,
    "kill": 0.6,
    "kill_inside": 0.5,
    "kill_at": 2.5,
    "meanwhile": 3.5,
    "stop": 0.3,
    "freeze": 0.5,
    "jump": 0.2,
    "fault": 0.6,
    "mind": 5.0,
    "busy": 0.4,
    "full": 0.2,
}
MORE_ACTIONS = {**EXTRA_ACTIONS, "cancel": 6.0, "forget_while_building": 3.0}
STEPS_TO_DIE_AT = tuple(
    f"{when} {what}"
    for what in (
        "summary",
        "Compress by compression",
        "TakeReview",
        "Note by review",
        "Rewrite",
        "New by delegation",
        "Accept",
        "Begin",
        "Commit",
        "Accept of work",
        "Begin of work",
        "Delegate",
        "Expire by delegation",
        "Stop",
    )
    for when in ("before", "after")
)


_HOLD_UPS = ("new", "resume", "branch", "rewind", "rewind", "forget", "forget_fact", "freeze")
HOLD_UPS = {
    "before summary": _HOLD_UPS,
    "after summary": _HOLD_UPS,
    "before Compress by compression": _HOLD_UPS,
    "after TakeReview": (*_HOLD_UPS, "freeze"),
    "before Note by review": (*_HOLD_UPS, "freeze"),
    "before Rewrite": ("rewind", "rewind", "forget", "forget", "freeze", "freeze", "new"),
    "after Rewrite": ("forget", "forget", "forget_fact", "rewind"),
    "before Delegate": (*_HOLD_UPS, "stop"),
    "after New by delegation": (*_HOLD_UPS, "stop"),
    "before Accept of work": ("stop",),
    "after Accept of work": ("stop",),
}
"""Steps at which a process may be held up, and the events that may happen meanwhile."""
TAKEN_OVER_S = 100.0
"""Time in which another process takes over the review of a stopped one."""


def make_agent_schedule(dice: random.Random) -> list[Step]:
    return make_schedule(dice, ACTIONS, STEP_S)


def _is_helper(key: SessionKey) -> bool:
    return key.platform == SUBAGENT_PLATFORM


class AgentSimulation(Simulation):
    """Run one schedule with agents."""

    policies = POLICIES
    has_files = False

    def __init__(self, seed: int, schedule: list[Step], *, extended: bool = False) -> None:
        super().__init__(seed, schedule, extended=extended)
        self.mind = SimModelState(self.clock, self._violated, self._asked, hit=self.faults.hit)
        self._agents: Counter[str] = Counter()
        self.counts["agents"] = self._agents
        self.counts["deaths"] = Counter()
        self._ledger = ReviewLedger(self.reference, self.database, self._may_be_at_work, self._took_over, self._agents)
        self.counts["meanwhile"] = Counter()
        self._die_at: list[str] = []
        self._meanwhile: dict[str, tuple[str, int]] = {}
        self._happening: set[asyncio.Task[None]] = set()
        self._summarising: dict[str, list[AgentServer]] = {}
        self._went_on: set[str] = set()
        self._were_stopped: set[str] = set()
        self._summaries = Summaries(self.reference, self.tables)
        self._effects = TurnEffects(self.reference, self._agents)
        self._notes = NoteLedger(self.reference, self.database, self.tables, self._agents)

    def _new_server(self, name: str, seed: int) -> Server:
        return AgentServer(self, name, seed)

    # --- Reports of processes ----------------------------------------------------------------------------------------

    def passes(self, process: AgentServer, where: str) -> None:
        """Handle a step of a process. The process may be killed or held up here."""
        process.check()
        if where in self._die_at:
            self._die_at.remove(where)
            self.counts["deaths"][where] += 1
            self.log_step(f"{process.name} dies {where}")
            self.faults.hit["kill"] += 1
            process.kill()
            raise Killed
        if where in self._meanwhile:
            what, dice = self._meanwhile.pop(where)
            self.counts["meanwhile"][f"{what} {where}"] += 1
            self.log_step(f"{process.name} is held up {where}: {what}")
            self._delay(process, where, what, random.Random(dice))

    def _delay(self, process: AgentServer, where: str, what: str, dice: random.Random) -> None:
        """Delay the process and run an event at every key before its next step."""
        if what == "stop":
            self._stop_all(process)
            return
        if what == "freeze":
            self._freeze(process, over_a_review=where.endswith("eview"))
            return
        process.frozen_until = self.loop.time() + 1.5
        for key in KEYS:
            task = asyncio.ensure_future(self._happen(process, key, what, dice))
            self._happening.add(task)
            task.add_done_callback(self._happening.discard)

    def _stop_all(self, process: AgentServer) -> None:
        """Stop every answer of the process."""
        for slot in list(self.reference.slots.values()):
            if slot.claim[0] == process.name and not _is_helper(slot.key):
                self._agents["answers stopped"] += process.agent.stop(slot.session)

    def _freeze(self, process: AgentServer, *, over_a_review: bool) -> None:
        self.time_was_bent = True
        self._were_stopped.add(process.name)
        process.frozen_until = self.loop.time() + (TAKEN_OVER_S if over_a_review else 40.0)

    def _took_over(self, by: str, before: str) -> None:
        """Continue a process that was stopped during a review, while the new holder still works on the review."""
        now = self.loop.time()
        stopped = [server for server in self._servers if server.name == before and server.frozen_until > now]
        for server in stopped:
            server.frozen_until = now
            for other in self._servers:
                if other.name == by:
                    other.frozen_until = now + 4.0
            self._agents["reviews by two"] += 1

    async def _happen(self, held_up: AgentServer, key: SessionKey, what: str, dice: random.Random) -> None:
        others = [server for server in self._servers if not server.dead and server is not held_up]
        if not others:
            return
        server = dice.choice(others)
        with suppress(EverthreadError):
            if what in ("forget", "forget_fact"):
                await server.spawn(self._do(server, key, what, dice))
            else:
                await server.spawn(self._cross(server, key, what, dice))

    def heard_event(self, event: TurnEvent) -> None:
        match event:
            case Compressed(instead_because=why):
                self._agents["extracts" if why else "summaries applied"] += 1
            case CompressionFailed():
                self._agents["compressions that failed"] += 1
            case TurnEnded():
                self._agents["turns ended"] += 1
            case _:
                pass

    def summarising(self, process: AgentServer, middle: Middle) -> int:
        """Check that one process summarises a session at a time, and that summaries are made from whole turns."""
        self._agents["summaries begun"] += 1
        session_id = middle.ref.session_id
        others = [other.name for other in self._summarising.get(session_id, ()) if not other.dead]
        if others and not self.time_was_bent:
            self._violated(f"{process.name} summarises {session_id}, which {others} do already")
        self._summarising.setdefault(session_id, []).append(process)
        for turn in middle.turns:
            self._is_whole(turn)
        return self._summaries.begun(middle)

    def _is_whole(self, turn: Turn) -> None:
        rows: list[Row] = [
            (m.role.value, m.content, [[c.id] for c in m.tool_calls], m.tool_call_id) for m in turn.messages
        ]
        stored = self.tables.turns.get(turn.session_id, turn.number)
        # Forgotten turns keep no messages.
        if not self._ledger.forgotten and (wrong := unpaired(rows)):
            self._violated(f"turn {turn.number} of {turn.session_id} was summarised with {wrong}")
        if stored is not None and len(stored.messages) != len(turn.messages):
            self._violated(f"only a part of turn {turn.number} of {turn.session_id} was summarised")

    def summarised(self, process: AgentServer, middle: Middle, summary: str, begun: int) -> None:
        self._summarising[middle.ref.session_id].remove(process)
        self._summaries.made(middle, summary, begun)

    def rolled_over(self, rollover: Rollover) -> None:
        if rollover.entered.session_id in self._went_on:
            self._violated(f"the engine was told twice of {rollover.entered.session_id}")
        self._went_on.add(rollover.entered.session_id)

    def _asked(self, purpose: str, request: Request, history: list[Row]) -> None:
        self._agents[f"asked for a {purpose}"] += 1
        if purpose == "review" and not self._ledger.forgotten:
            tools = json.loads(request.head)[1]
            if tools != TOOLS or request.head not in self._stored_heads():
                self._violated(f"a review was sent a prompt that no conversation has, with {tools}")
        # A user who resumes delegated work has all tools.
        handed_over = any(s.text == request.tail[0].content for s in self.reference.slots.values() if _is_helper(s.key))
        if handed_over and {"memory", "delegate"} & set(json.loads(request.head)[1]):
            self._violated("handed-over work was given tools that are not for it")
        if purpose == "turn":
            self._sees_all(request, history)
        process = PROCESS.get()
        if purpose in ("turn", "work") and process is not None and self.faults.extended:
            self._checked(lambda: self._effects.model_called(process.name, request.tail[0].content))

    def _stored_heads(self) -> set[bytes]:
        rows = self.database.execute("SELECT content FROM prefixes")
        return {head_of(decode_prompt(content).prompt) for (content,) in rows}

    def _sees_all(self, request: Request, history: list[Row]) -> None:
        """Check that a turn's prompt contains the turns of its session that fit, and the summary of the rest."""
        said = request.tail[0].content
        slot = next((slot for slot in self.reference.slots.values() if slot.text == said and slot.fate == "live"), None)
        if slot is None or self._ledger.forgotten or self.time_was_bent:
            return
        session = self.reference.sessions[slot.session]
        if session.kind is not SessionKind.CHAT:
            return
        shown = [content for role, content, _, _ in history if role == "user"]
        wanted = [text for number, text in session.shown if text in shown or not self._has_no_room(session.id, number)]
        if shown != wanted[len(wanted) - len(shown) :] or (wanted and not shown):
            self._violated(f"{said!r} was answered in sight of {shown}, not {wanted}")
        lines = summed_up(json.loads(request.head)[0])
        for number, text in session.behind:
            if not any(line.startswith(f"{number}: {text}") for line in lines):
                self._violated(f"{said!r} was answered without turn {number} ({text!r}), summary or not")

    def _has_no_room(self, session_id: str, number: int) -> bool:
        """A turn that is too large by itself is omitted from every prompt."""
        session = self.tables.sessions.get(session_id)
        assert session is not None
        return any(
            size_of(turn) > LARGE_BYTES for turn in self.tables.turns.view(session).turns if turn.number == number
        )

    def _may_be_at_work(self, holder: str) -> bool:
        """Return False for a process that others may consider dead: its lease may expire while it is stopped or after
        the clock was moved.
        """
        if self.clock.was_set or self.clock.offset != EPOCH or holder in self._were_stopped:
            return False
        return any(s.name == holder and not s.dead and not s.was_stopped for s in self._servers)

    def observe(self, operation: object | None, result: object) -> None:
        super().observe(operation, result)
        if self.violation is not None:
            return
        try:
            self._ledger.observe_result(operation, result)
            self._summaries.observe_result(operation, result)
            self._notes.observe_result(operation, result)
            self._watch_cancelled()
            match operation, result:
                case asked.Delegate(), None:
                    self._agents["work handed over"] += 1
                case asked.Commit(), CommittedTurn() if not (self.time_was_bent or self._store_failed()):
                    check_helpers(self.reference, operation, result)
                case _:
                    pass
        except AssertionError as error:
            self._violated(f"{type(error).__name__}: {error}")

    def _watch_cancelled(self) -> None:
        for turn_id, process in self._effects.newly_cancelled() if self.faults.extended else ():
            self.loop.call_later(CANCELLED_S_MAX, self._check_cancelled, turn_id, process)

    def _check_cancelled(self, turn_id: str, process: str) -> None:
        def is_excused() -> bool:
            dead = all(server.name != process or server.dead for server in self._servers)
            return dead or self.time_was_bent or self._store_failed()

        self._checked(lambda: self._effects.is_over(turn_id, process, is_excused=is_excused))

    def tool_called(self, process: AgentServer, turn_id: str) -> None:
        if self.faults.extended:
            self._checked(lambda: self._effects.tool_called(process.name, turn_id))

    def _checked(self, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self._violated(str(error))

    def _store_failed(self) -> bool:
        """Return True if the store has failed. Missing writes are no violation then."""
        return bool(self.faults.hit["store busy"] or self.faults.hit["disk full"])

    # --- Events ------------------------------------------------------------------------------------------------------

    async def _take(self, step: Step, dice: random.Random) -> None:
        key = dice.choice(tuple(KEYS))
        match step.action:
            case "compress":
                await self._on(dice, lambda server: self._compress(cast(AgentServer, server), self._with_most()))
            case "interrupt":
                await self._interrupt(key, dice)
            case "cancel":
                await self._cancel(dice)
            case "forget_while_building":
                what = dice.choice(("forget_fact", "forget_fact", "forget_fact", "forget", "freeze"))
                self._meanwhile["before Prefix"] = (what, dice.getrandbits(32))
            case "forget_source":
                await self._forget_source(dice)
            case "mind":
                purpose = dice.choice(
                    (
                        "summary",
                        "summary",
                        "summary",
                        "review",
                        "review",
                        "condensing",
                        "condensing",
                        "work",
                        "work",
                        *FAULTS,
                    )
                )
                waiting = self.mind.faults.setdefault(purpose, [])
                waiting += dice.choices(FAULTS[purpose], k=dice.choice((1, 1, 2)))
            case "meanwhile":
                # Raise the share of reviews and condensing, which are rare.
                where = dice.choice((*HOLD_UPS, "after TakeReview", "before Rewrite", "before Rewrite"))
                self._meanwhile[where] = (dice.choice(HOLD_UPS[where]), dice.getrandbits(32))
            case "kill_at":
                self._die_at.append(dice.choice(STEPS_TO_DIE_AT))
                self._die_at.append(dice.choice(STEPS_TO_DIE_AT[:10]))
            case _:
                await super()._take(step, dice)

    async def _inject_fault(self, action: str, dice: random.Random) -> None:
        await super()._inject_fault(action, dice)
        if action == "freeze":
            now = self.loop.time()
            self._were_stopped |= {server.name for server in self._servers if server.frozen_until > now}

    def _with_most(self) -> SessionKey:
        """Key with the most turns to compress."""

        def shown(key: SessionKey) -> int:
            session = self.reference.sessions.get(self.reference.on[key] or "")
            return len(session.shown) if session is not None and session.owner == KEYS[key] else 0

        return max(KEYS, key=shown)

    async def _compress(self, server: AgentServer, key: SessionKey) -> None:
        """Compress on request of a user."""
        try:
            await server.agent.compress(key, server.choice, owner=KEYS[key])
            self._agents["compressed on request"] += 1
        except EverthreadError as error:
            self._agents["refused on request"] += 1
            self.log_step(f"{server.name}: not compressed: {error}")

    async def _forget_source(self, dice: random.Random) -> None:
        """Forget a session whose facts were noted in another session, once there is one."""
        until = self.loop.time() + SOURCE_S
        while not (sources := self._notes.sources()):
            if self.loop.time() > until:
                return
            await asyncio.sleep(1.0)
        session_id, owner = dice.choice(sources)
        await self._on(dice, lambda server: self._forget_session(server, session_id, owner))

    async def _forget_session(self, server: Server, session_id: str, owner: str) -> None:
        await server.lifecycle.forget(ForgetSession(session_id), owner=owner)
        self._agents["sources forgotten"] += 1

    async def _interrupt(self, key: SessionKey, dice: random.Random) -> None:
        """Stop an answer as a user would. Its delegated work must stop too."""
        until = self.loop.time() + PATIENCE_S
        while not (slots := [(i, slot) for i, slot in self.reference.slots.items() if slot.key == key]):
            if self.loop.time() > until:
                return
            await asyncio.sleep(0.2)
        await asyncio.sleep(dice.random() * 2.0)
        for turn_id, slot in slots:
            for server in self._servers:
                if not server.dead and cast(AgentServer, server).agent.stop(slot.session):
                    self._agents["answers stopped"] += 1
                    await self._stopped_with_its_children(cast(AgentServer, server), turn_id)

    async def _cancel(self, dice: random.Random) -> None:
        """Cross a boundary in one process while another one runs a turn of that session."""
        if dice.random() < 0.5:
            self.mind.faults.setdefault("turn", []).append("slow")
        until = self.loop.time() + PATIENCE_S
        while not (running := [s for s in self.reference.slots.values() if s.fate == "live" and s.claim[0]]):
            if self.loop.time() > until:
                return
            await asyncio.sleep(0.1)
        await asyncio.sleep(dice.random() * 3.0)
        slot = dice.choice(running)
        others = [server for server in self._servers if not server.dead and server.name != slot.claim[0]]
        if others and slot.key in KEYS:
            server, action = dice.choice(others), dice.choice(("new", "reset", "resume", "branch", "rewind", "rewind"))
            with suppress(EverthreadError):
                await server.spawn(self._cross(server, slot.key, action, dice))

    async def _stopped_with_its_children(self, server: AgentServer, turn_id: str) -> None:
        until = self.loop.time() + 30.0
        while turn_id in self.reference.slots and self.loop.time() < until:
            await asyncio.sleep(0.1)
        if server.dead or self.time_was_bent or turn_id in self.reference.slots or self.faults.busy or self.faults.full:
            return
        # The next recovery settles work without a holder.
        children = [slot for slot in self.reference.slots.values() if slot.key.chat.startswith(f"{turn_id}-")]
        left = [slot for slot in children if slot.claim[0]]
        require(not left, f"turn {turn_id} was stopped, and what it handed over goes on: {left}")

    # --- The end -----------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        self._die_at.clear()
        self._meanwhile.clear()
        self.mind.faults.clear()
        await super()._settle()
        # Advance the clock past the retry delays of failed reviews.
        for _ in range(6):
            if not self._reviews():
                return
            self.clock.offset += COOL_DOWN_S
            self.time_was_bent = True
            await asyncio.sleep(65.0)
            await self._until_quiet()

    def _pending_work(self) -> dict[str, int]:
        return {
            **super()._pending_work(),
            "reviews": self._reviews(self.clock.now()),
            "agents": sum(cast(AgentServer, server).busy for server in self._servers),
        }

    def _reviews(self, by: float = float("inf")) -> int:
        """Count unfinished reviews that are due by then."""
        sql = "SELECT COUNT(*) FROM reviews WHERE state IN ('waiting', 'running') AND due_at <= ?"
        return next(iter(self.database.execute(sql, (by,))))[0]

    def _check(self) -> None:
        if self.violation is not None:
            raise Violation(self.violation)
        super()._check()
        check_agents(self.reference, self.database, self.tables, self.backends, self._ledger, self._notes)
