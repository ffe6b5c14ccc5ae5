"""A state of the explored system: one store, two processes, their surroundings, and the reference model.

The store is a real database in memory. Everything else is in `State`, which is copied. To try a step and undo it,
use `World.undo_after`: it costs a savepoint and a copy of `State`, a tenth of copying the database.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.domain.boundary import Branch, Compress
from everthread.domain.model import ChatType, Lease, SessionKey, SessionRef
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.lifecycle.turns import PROCESS_TTL_S
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork
from tests.explorer.actions import Action, Outcome, Step
from tests.explorer.copying import copied_by_value, duplicate
from tests.explorer.stepped_store import Crashed, SteppedStore
from tests.simulator import operations as asked
from tests.simulator.backends import Backend
from tests.simulator.database import fresh_database
from tests.simulator.environment import EPOCH
from tests.simulator.event_loop import SimLoop
from tests.simulator.reference_model import ActiveAt, ReferenceModel
from tests.simulator.reference_types import ModelSession, require

T = TypeVar("T")

OWNER = "ann"
KEYS = {
    "K": SessionKey("main", "telegram", ChatType.DM, "1"),
    "L": SessionKey("main", "telegram", ChatType.DM, "2"),
}
PROCESSES = ("P", "Q")
IDLE_S = 1000.0
LEASE_S = 15.0
HOOKS = frozenset({"on_session_finalize", "on_session_reset"})
POLICIES = ResetPolicies(ResetPolicy(idle_s=IDLE_S))


@dataclass(frozen=True, slots=True)
class CrossByCommand(asked.Cross):
    """A boundary that a command asks for, with the messages that were accepted before the command."""

    command_id: int = 0
    before: frozenset[str] = frozenset()


@copied_by_value
class ExplorerModel(ReferenceModel):
    """The reference model, with commands and with branches of a named session.

    A command is carried out once, and sets aside only the messages before it.
    """

    def __init__(self, owners: dict[SessionKey, str], policies: ResetPolicies) -> None:
        super().__init__(owners, policies)
        self.commands_done: set[int] = set()

    def observe_result(
        self, operation: object | None, result: object, rows: list[BoundaryRow], active_at: ActiveAt, now: float
    ) -> None:
        if isinstance(operation, CrossByCommand) and rows:
            require(
                operation.command_id not in self.commands_done, f"command {operation.command_id} was carried out twice"
            )
            self.commands_done.add(operation.command_id)
        super().observe_result(operation, result, rows, active_at, now)

    def _set_aside(self, key: SessionKey, left: Any, opened: Any, operation: object | None) -> None:
        kept: list[tuple[str, float]] = []
        if isinstance(operation, CrossByCommand):
            kept = [(text, at) for text, at in self.waiting[key] if text not in operation.before]
            self.waiting[key] = [(text, at) for text, at in self.waiting[key] if text in operation.before]
        super()._set_aside(key, left, opened, operation)
        self.waiting[key] += kept

    def _expect_branch(self, row: BoundaryRow, left: Any, others: list[SessionKey], operation: object | None) -> None:
        boundary = operation.boundary if isinstance(operation, asked.Cross) else None
        if not isinstance(boundary, Branch) or not boundary.parent:
            super()._expect_branch(row, left, others, operation)
            return
        self._set_aside(row.key, left, None, operation)
        self._leave(row.key, left, None)
        source = self.sessions[boundary.parent if boundary.as_it_was else self._tip(boundary.parent)]
        opened = self._open(row, list(source.shown), ("opened", source.id, False, "branch"), source)
        opened.behind = list(source.behind)
        self._set_aside(row.key, None, opened, operation)


@copied_by_value
@dataclass
class ProcessState:
    """The memory of one process."""

    name: str
    claims: dict[str, TurnClaim] = field(default_factory=dict[str, TurnClaim])
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    sends: bool = False
    """Its outbox has taken over the unsent replies of the previous process."""

    @property
    def holds_something(self) -> bool:
        return bool(self.claims or self.leases or self.sends)


@copied_by_value
@dataclass
class State:
    """Everything that is not in the store."""

    model: ExplorerModel
    backends: dict[str, Backend]
    now: float = EPOCH
    processes: dict[str, ProcessState] = field(
        default_factory=lambda: {label: ProcessState(f"{label.lower()}1") for label in PROCESSES}
    )
    used: Counter[str] = field(default_factory=Counter[str])
    """Uses of the bounded steps."""
    ids: Counter[str] = field(default_factory=Counter[str])
    summary: Compress | None = None
    """A summary that was made and not applied yet."""
    forgotten_before_summary: int = 0
    hooks_called: defaultdict[SessionKey, list[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict[SessionKey, list[tuple[str, str]]](list)
    )
    sent: list[str] = field(default_factory=list[str])
    """Messages that the platform has shown, by id."""
    prefixes: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The prompt prefix that each session had first."""
    refs: dict[SessionKey, SessionRef | None] = field(default_factory=dict[SessionKey, SessionRef | None])
    """The ref of each key before the last step."""
    boundaries_seen: int = 0
    effects_checked: Counter[str] = field(default_factory=Counter[str])
    """Number of the effects of each back end that were compared with the logs. Entries of a log never change."""
    problems: list[str] = field(default_factory=list[str])
    """Violations found in callbacks, whose callers in the product would handle an exception."""


class World:
    """The explored system. `perform` carries out one step; `branch` undoes steps."""

    def __init__(self, steps: dict[str, Step], keys: tuple[str, ...], providers: tuple[str, ...]) -> None:
        self.keys = keys
        self.providers = providers
        self.loop = SimLoop()
        self.database = fresh_database()
        self.tables = UnitOfWork(SqliteDatabase(self.database))
        backends = {name: Backend(name) for name in providers}
        self.state = State(ExplorerModel({KEYS[key]: OWNER for key in keys}, POLICIES), backends)
        self.stores = {label: SteppedStore(self.database, self._observe) for label in PROCESSES}
        self._steps = steps
        self._lifecycles: dict[str, Lifecycle] = {}
        self._operation: object | None = None
        self._id_prefix = ""

    def close(self) -> None:
        self.loop.close()
        self.database.close()

    # Steps ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def undo_after(self) -> Iterator[None]:
        """Undo all changes at the end of the block."""
        kept, self.state = self.state, duplicate(self.state)
        self.database.execute("SAVEPOINT branch")
        try:
            yield
        finally:
            self.database.execute("ROLLBACK TO branch")
            self.database.execute("RELEASE branch")
            self.state = kept

    def perform(self, action: Action) -> Outcome:
        """Carry out a step, and restart the process if it died."""
        store = self.stores[action.process]
        store.prepare(action.crash)
        changes, ids = self._changes(), self.state.ids.copy()
        self.name_ids_after(action.key)
        self.state.refs = {KEYS[key]: self.tables.sessions.ref(KEYS[key]) for key in self.keys}
        try:
            self._steps[action.verb].run(self, action)
        except Crashed:
            pass
        if self._changes() == changes:
            # A step that changed nothing must not lead to a new state just because it has used up ids.
            self.state.ids = ids
        outcome = Outcome(tuple(store.statements), store.accesses)
        if store.dead:
            self.restart(action.process)
        store.prepare(None)
        return outcome

    def do(self, process: str, operation: object | None, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation of the lifecycle and report it to the reference model. It must not wait."""
        self._operation = operation
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        finally:
            self._operation = None
            work.close()
        raise AssertionError(f"{operation} of {process} waits for something outside the store")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that starts tasks."""
        return self.loop.run_until_complete(work)

    def lifecycle(self, process: str) -> Lifecycle:
        name = self.state.processes[process].name
        if name not in self._lifecycles:
            self._lifecycles[name] = Lifecycle(
                self.stores[process], self, self._new_id, holder=name, policies=POLICIES, hooks=HOOKS
            )
        return self._lifecycles[name]

    def name_ids_after(self, key: str) -> None:
        """Number new ids by key, so that the order of steps at different keys does not change them."""
        self._id_prefix = f"{key or 'x'}."

    def _changes(self) -> int:
        return self.rows("SELECT total_changes()")[0][0]

    def _new_id(self) -> str:
        self.state.ids[self._id_prefix] += 1
        return f"{self._id_prefix}{self.state.ids[self._id_prefix]:02}"

    def _observe(self, result: object) -> None:
        """Report a commit to the reference model."""
        state, rows = self.state, list[BoundaryRow]()
        while row := self.tables.sessions.boundary(state.boundaries_seen + 1):
            state.boundaries_seen += 1
            rows.append(row)
        if isinstance(self._operation, asked.Recover):
            self._see_settled()
        try:
            state.model.observe_result(self._operation, result, rows, self._active_at, state.now)
        except (AssertionError, LookupError) as error:
            state.problems.append(f"{type(error).__name__}: {error}")
            raise
        if isinstance(self._operation, asked.Abandon):
            self._see_settled()

    def _see_settled(self) -> None:
        for turn_id in sorted(self.state.model.slots):
            if self.tables.slots.get(turn_id) is None:
                self.state.model.settled(turn_id, self.state.now)

    def _active_at(self, session_id: str) -> float:
        session = self.tables.sessions.get(session_id)
        return session.active_at if session is not None else 0.0

    # Time and processes ---------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.state.now

    def elapsed(self) -> float:
        return self.state.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a step may not wait for the clock")

    def other(self, process: str) -> str:
        return "Q" if process == "P" else "P"

    def actors(self) -> tuple[str, ...]:
        """The processes that may act. Before P has acted, Q is left out: its steps would be symmetrical."""
        first = self.state.processes["P"]
        known = first.holds_something or first.name != "p1" or self.rows("SELECT 1 FROM serving LIMIT 1")
        return PROCESSES if known else ("P",)

    def expire_leases(self, process: str) -> None:
        """End the leases of a process, as if it had not renewed them in time.

        The clock does not advance: otherwise, each stall would add states that differ only in their times.
        """
        name = self.state.processes[process].name
        self.database.execute("UPDATE leases SET expires_at = ? WHERE holder = ?", (self.state.now, name))

    def pass_time(self, seconds: float) -> None:
        """Let time pass. The processes renew the leases that they still have."""
        state = self.state
        state.now += seconds
        for process in state.processes.values():
            if self.tables.leases.is_alive(process.name, state.now - seconds):
                self.tables.leases.keep_alive(process.name, state.now, PROCESS_TTL_S)
            for name, lease in list(process.leases.items()):
                if not self.tables.leases.renew(lease, state.now, LEASE_S):
                    del process.leases[name]

    def restart(self, process: str) -> None:
        """Replace a process that was killed. Its leases expire."""
        self.state.used["crashes"] += 1
        self.expire_leases(process)
        self.replace_process(process)

    def replace_process(self, process: str) -> None:
        name = self.state.processes[process].name
        self.state.processes[process] = ProcessState(f"{name[0]}{int(name[1:]) + 1}")

    async def lease(self, process: str, name: str) -> Lease | None:
        """Return the process's lease of a lane; try to acquire it if it has none."""
        holder, held = self.state.processes[process].name, self.state.processes[process].leases
        if name not in held:
            acquire = self.stores[process].write
            lease = await acquire(lambda uow: uow.leases.acquire(name, holder, self.state.now, LEASE_S))
            if lease is None:
                return None
            held[name] = lease
        return held[name]

    def release_lanes(self) -> None:
        """Release the lanes of all processes, as at the start of a schedule."""
        for process in self.state.processes.values():
            for lease in process.leases.values():
                self.tables.leases.release(lease)
            process.leases.clear()
            process.sends = False

    # Looking at the state -------------------------------------------------------------------------------------------

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return list(self.database.execute(sql, values))

    def session_at(self, key: str) -> ModelSession | None:
        return self.state.model.sessions.get(self.state.model.on[KEYS[key]] or "")

    def forgotten_sessions(self) -> int:
        return sum(session.forgotten for session in self.state.model.sessions.values())

    def is_running(self, session: ModelSession | None) -> bool:
        """Return True if a turn runs in the session."""
        slots = self.state.model.slots.values()
        return session is not None and any(slot.session == session.id and slot.fate == "live" for slot in slots)
