"""Scheduled tasks and their occurrences. Each occurrence runs once, whichever process runs it.

Firing is one transaction: it writes the row of the occurrence and the task's next time. Beginning is another: it opens
a session and puts the prompt into the inbox. The row of an occurrence shows how far a dead process got.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.boundary import New
from everthread.domain.clock_rules import credible_time
from everthread.domain.errors import AlreadyExists, BadInput, BadRecurrence, BadSchedule, NotFound
from everthread.domain.model import (
    Inbound,
    InboxRow,
    InboxState,
    Reply,
    ReplyState,
    Role,
    SessionKey,
    SessionKind,
    TurnStatus,
)
from everthread.domain.recurrence import MissedPolicy, due_occurrences, occurrences
from everthread.domain.schedule import (
    Occurrence,
    OccurrenceState,
    Schedule,
    ScheduleState,
    Target,
    TargetKind,
    check_name,
    check_prompt,
    key_of,
    make_name,
)
from everthread.domain.text_format import quote_start
from everthread.lifecycle.base import StoreOperations, WriteContext, transaction
from everthread.lifecycle.boundaries import cross
from everthread.ports.clock import Clock
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

DUE_AT_ONCE = 64
OCCURRENCES_KEPT = 100
SCHEDULES_MAX = 1000
"""Maximum number of active and paused tasks per owner."""
FINISHED_KEPT = 20
"""Number of finished tasks kept per owner, because one-time reminders would otherwise accumulate."""
_LOOKAHEAD_MAX = 1000
_ERROR_CHARS_MAX = 2000
_PROBLEM_CHARS_MAX = 500
_OPEN = (OccurrenceState.WAITING, OccurrenceState.RUNNING, OccurrenceState.DELIVERING)


class NewSchedule(Struct, frozen=True):
    """Input of `ScheduleService.add`."""

    owner: str
    recurrence: str
    zone: str
    prompt: str
    name: str = ""
    target: Target = Target()
    model: str = ""
    tools: tuple[str, ...] | None = None
    missed: MissedPolicy = MissedPolicy.ONCE
    continues: bool = False
    spend: float | None = None


class OccurrenceResult(Struct, frozen=True):
    """Result of an occurrence: the answer, and the problem if the answer is missing or incomplete."""

    text: str
    problem: str = ""
    session_id: str = ""
    turn_id: str = ""
    """Outbox name of the answer. An empty name means that the answer is not delivered."""
    chat_text: str = ""
    """Text for a chat in place of `problem`."""


class ScheduleOutput(Struct, frozen=True):
    """The result of an occurrence to deliver, as it was stored at `forget_count` of its owner."""

    schedule: Schedule
    occurrence: Occurrence
    result: OccurrenceResult
    forget_count: int


class ScheduleService(StoreOperations):
    """Schedule operations: the only writer of tasks and occurrences."""

    def __init__(self, store: Store, clock: Clock, new_id: Callable[[], str]) -> None:
        super().__init__(store, clock)
        self._new_id = new_id

    async def add(self, new: NewSchedule, *, at_most: int = SCHEDULES_MAX) -> Schedule:
        """Store a task. Raises `BadInput` for an invalid task, `AlreadyExists` if the name is taken."""
        check_prompt(new.prompt)
        anchor = float(math.floor(self._clock.now()))
        schedule = Schedule(
            self._new_id(),
            new.owner,
            check_name(new.name) if new.name else "",
            " ".join(new.recurrence.split()),
            new.zone,
            anchor,
            new.prompt,
            new.target,
            new.model,
            new.tools,
            new.missed,
            new.continues,
            new.spend,
        )
        first = schedule.plan.after(anchor)
        if first is None:
            raise BadRecurrence(f"{new.recurrence[:60]!r} never occurs")
        schedule = replace(schedule, next_at=first)

        def store(uow: UnitOfWork) -> Schedule:
            existing = uow.schedules.all(new.owner)
            count = sum(each.state is not ScheduleState.OVER for each in existing)
            if count >= at_most:
                raise BadSchedule(f"there are already {count} tasks, and at most {at_most} are allowed; remove one")
            _remove_old(uow, existing)
            named = replace(schedule, name=schedule.name or make_name(new.prompt, {each.name for each in existing}))
            if not uow.schedules.add(named):
                raise AlreadyExists(f"a task {named.name!r} already exists; choose another name, or remove it first")
            return named

        return await self._store.write(store)

    async def find(self, owner: str, name: str) -> Schedule:
        found = await self._store.read(lambda uow: uow.schedules.named(owner, name))
        if found is None:
            raise NotFound(f"there is no task {name[:80]!r}; `everthread cron list` shows all")
        return found

    async def all(self, owner: str | None = None) -> tuple[tuple[Schedule, Occurrence | None], ...]:
        """Return the tasks of an owner, or of every owner, each with its last occurrence."""

        def read(uow: UnitOfWork) -> tuple[tuple[Schedule, Occurrence | None], ...]:
            return tuple(
                (each, next(iter(uow.schedules.occurrences(each.id, 1)), None)) for each in uow.schedules.all(owner)
            )

        return await self._store.read(read)

    async def pause(self, schedule: Schedule) -> Schedule:
        return await self._store.write(lambda uow: self._save_state(uow, schedule, ScheduleState.PAUSED))

    async def resume(self, schedule: Schedule) -> Schedule:
        """Resume a paused task. Occurrences missed during the pause are not run."""
        return await self._store.write(lambda uow: self._save_state(uow, schedule, ScheduleState.ON))

    async def remove(self, schedule: Schedule) -> bool:
        """Remove a task. A running occurrence may finish, but its answer is not delivered."""
        return await self._store.write(lambda uow: uow.schedules.remove(schedule.id))

    @transaction
    def run_now(self, uow: UnitOfWork, schedule: Schedule) -> Occurrence:
        """Add an extra occurrence that is due now."""
        at = math.floor(self._clock.now())
        while not uow.schedules.add_occurrence(wanted := Occurrence(schedule.id, float(at), schedule.owner)):
            at += 1
        return wanted

    async def fire_due(self, now: float) -> int:
        """Fire the due tasks, each in its own transaction. Returns the number of new occurrences."""
        found = await self._store.read_inline(lambda uow: uow.schedules.due(now, DUE_AT_ONCE))
        fired = 0
        for schedule_id in found:
            try:
                fired += await self._store.write(lambda uow, s=schedule_id: fire(uow, s, now))
            except BadInput as error:
                await self._pause_broken(schedule_id, str(error))
        return fired

    @transaction
    def _pause_broken(self, uow: UnitOfWork, schedule_id: str, problem: str) -> None:
        """Pause a task that can't be planned (its time zone may be unknown), so that it does not block others."""
        known = uow.schedules.get(schedule_id)
        if known is not None:
            uow.schedules.save(replace(known, state=ScheduleState.PAUSED, next_at=None))
            broken = Occurrence(schedule_id, known.next_at or 0.0, known.owner, problem=problem)
            _report(uow, broken, f"{known.name} is paused: {problem}", self._clock.now())

    async def replan(self) -> None:
        """Plan every active task again, because the clock may have been set back.

        An occurrence that has a row does not run again. A task that was added under a clock that was ahead counts as
        added now.
        """

        def save_plans(uow: UnitOfWork, some: Sequence[Schedule]) -> None:
            for schedule in some:
                # `fire_due` handles an invalid task when it is due; a removed one needs no plan.
                with suppress(BadInput, NotFound):
                    self._save_state(uow, schedule, ScheduleState.ON, sooner=True)

        planned = await self._store.read(lambda uow: uow.schedules.all())
        wanted = [schedule for schedule in planned if schedule.state is ScheduleState.ON]
        for at in range(0, len(wanted), DUE_AT_ONCE):
            await self._store.write(lambda uow, some=wanted[at : at + DUE_AT_ONCE]: save_plans(uow, some))

    async def end(self, time: Occurrence, outcome: OccurrenceResult) -> tuple[Occurrence, Reply | None] | None:
        """End an occurrence and queue the reply to a chat target. Returns None if it had ended already."""
        return await self._store.write(lambda uow: end(uow, time, outcome, self._clock.now()))

    @transaction
    def claim(self, uow: UnitOfWork, time: Occurrence, until: float) -> bool:
        """Claim the delivery of an answer until that time. Returns False if another process has it."""
        known = uow.schedules.occurrence(time.schedule_id, time.due_at)
        if known is None or known.state is not OccurrenceState.DELIVERING or known.attempts != time.attempts:
            return False
        uow.schedules.save_occurrence(replace(known, attempts=known.attempts + 1, retry_at=until))
        return True

    @transaction
    def mark_delivered(self, uow: UnitOfWork, time: Occurrence) -> None:
        known = uow.schedules.occurrence(time.schedule_id, time.due_at)
        if known is not None:
            state = OccurrenceState.FAILED if known.problem else OccurrenceState.DONE
            uow.schedules.save_occurrence(replace(known, state=state, retry_at=0.0))

    @transaction
    def mark_delivery_failed(self, uow: UnitOfWork, time: Occurrence, problem: str, retry_at: float | None) -> None:
        """Record a failed delivery. It is retried at `retry_at`; None gives it up."""
        known = uow.schedules.occurrence(time.schedule_id, time.due_at)
        if known is None:
            return
        if retry_at is not None:
            uow.schedules.save_occurrence(replace(known, retry_at=retry_at))
            return
        uow.schedules.save_occurrence(
            replace(known, state=OccurrenceState.FAILED, problem=problem[:_PROBLEM_CHARS_MAX], retry_at=0.0)
        )
        _report(uow, known, problem, self._clock.now())

    async def output(self, time: Occurrence) -> ScheduleOutput | None:
        """Return the result to deliver, without facts that were forgotten since; None if the task was removed."""

        def read(uow: UnitOfWork) -> ScheduleOutput | None:
            schedule = uow.schedules.get(time.schedule_id)
            known = uow.schedules.occurrence(time.schedule_id, time.due_at)
            if schedule is None or known is None:
                return None
            result = outcome(uow, known) or OccurrenceResult("", "its answer was removed")
            return ScheduleOutput(schedule, known, result, uow.erasure.forget_count(schedule.owner))

        return await self._store.read(read)

    async def is_current(self, output: ScheduleOutput) -> bool:
        """Return whether the owner has had nothing forgotten since the result was read."""
        count = await self._store.read_inline(lambda uow: uow.erasure.forget_count(output.schedule.owner))
        return count == output.forget_count

    async def outcome(self, time: Occurrence) -> OccurrenceResult | None:
        """Return the stored result of an occurrence; None if it has not ended."""
        return await self._store.read(lambda uow: outcome(uow, time))

    def _save_state(
        self, uow: UnitOfWork, schedule: Schedule, state: ScheduleState, *, sooner: bool = False
    ) -> Schedule:
        known = uow.schedules.get(schedule.id)
        if known is None:
            raise NotFound(f"the task {schedule.name!r} was removed meanwhile")
        if known.state is ScheduleState.OVER or (sooner and known.state is not ScheduleState.ON):
            return known
        now = self._clock.now()
        if credible_time(known.anchor, now) < known.anchor:
            known, sooner = replace(known, anchor=float(math.floor(now)), next_at=None), False
        next_at = _next_free_time(uow, known, now) if state is ScheduleState.ON else None
        if sooner:
            both = [at for at in (known.next_at, next_at) if at is not None]
            next_at = min(both, default=None)
        if state is ScheduleState.ON and next_at is None:
            state = ScheduleState.OVER
        saved = replace(known, state=state, next_at=next_at)
        uow.schedules.save(saved)
        return saved


def _remove_old(uow: UnitOfWork, existing: Sequence[Schedule]) -> None:
    """Remove an owner's oldest finished tasks. A task with an open occurrence stays."""
    over = sorted((each for each in existing if each.state is ScheduleState.OVER), key=lambda each: each.anchor)
    for old in over[:-FINISHED_KEPT]:
        if all(time.state not in _OPEN for time in uow.schedules.occurrences(old.id, OCCURRENCES_KEPT)):
            uow.schedules.remove(old.id)


def _next_free_time(uow: UnitOfWork, schedule: Schedule, now: float) -> float | None:
    """Return the next time without a row: after the clock was set back, future occurrences may have run already."""
    ahead = zip(range(_LOOKAHEAD_MAX), occurrences(schedule.plan, now), strict=False)
    return next((at for _, at in ahead if uow.schedules.occurrence(schedule.id, at) is None), None)


def fire(uow: UnitOfWork, schedule_id: str, now: float) -> int:
    """Write a task's due occurrences and its next time. Returns the number of new occurrences."""
    schedule = uow.schedules.get(schedule_id)
    if schedule is None or schedule.state is not ScheduleState.ON or schedule.next_at is None:
        return 0
    found = due_occurrences(schedule.plan, schedule.next_at, now, schedule.missed)
    if found.skipped is not None:
        left_out = Occurrence(schedule.id, found.skipped, schedule.owner, OccurrenceState.SKIPPED, ended_at=now)
        uow.schedules.add_occurrence(left_out)
    fired = sum(uow.schedules.add_occurrence(Occurrence(schedule.id, at, schedule.owner)) for at in found.now)
    state = ScheduleState.ON if found.next_at is not None else ScheduleState.OVER
    uow.schedules.save(replace(schedule, state=state, next_at=found.next_at))
    uow.schedules.trim(schedule.id, OCCURRENCES_KEPT)
    return fired


def begin_occurrence(
    uow: UnitOfWork, schedule_id: str, due_at: float, profile: str, context: WriteContext
) -> tuple[SessionKey, InboxRow] | None:
    """Put the prompt of an occurrence into the inbox of the task's own session.

    Returns None if the occurrence is over, or another one of the task is running.
    """
    schedule, time = uow.schedules.get(schedule_id), uow.schedules.occurrence(schedule_id, due_at)
    if schedule is None or time is None or time.state not in (OccurrenceState.WAITING, OccurrenceState.RUNNING):
        return None
    key = key_of(schedule, profile)
    if time.state is OccurrenceState.RUNNING:
        row = uow.inbox.get(time.inbox_id or 0)
        return (key, row) if row is not None else None
    if uow.schedules.is_running(schedule_id):
        return None
    _, session = uow.sessions.at(key)
    if session is None or session.owner != schedule.owner or not schedule.continues:
        cross(uow, key, New(kind=SessionKind.CRON), schedule.owner, context)
    asked = Inbound(key, schedule.owner, schedule.prompt_at(due_at), schedule.id, repr(due_at))
    row, _ = uow.inbox.accept(asked, context.now)
    uow.schedules.save_occurrence(replace(time, state=OccurrenceState.RUNNING, inbox_id=row.id))
    return key, row


def outcome(uow: UnitOfWork, time: Occurrence) -> OccurrenceResult | None:
    row = uow.inbox.get(time.inbox_id or 0)
    if row is None:
        return OccurrenceResult("", "its prompt was removed")
    if row.state is InboxState.SET_ASIDE:
        return OccurrenceResult("", "it was set aside before it was answered", row.session_id or "")
    if row.state is not InboxState.DONE or row.session_id is None or row.turn_id is None:
        return None
    number = uow.turns.number(row.session_id, row.turn_id)
    turn = uow.turns.get(row.session_id, number) if number is not None else None
    if turn is None:
        return OccurrenceResult("", "its answer was removed", row.session_id, row.turn_id)
    answers = [m.content for m in turn.messages if m.role is Role.ASSISTANT and not m.tool_calls]
    problem = "" if turn.status is TurnStatus.DONE else "it was interrupted"
    return OccurrenceResult(answers[-1] if answers else "", problem, row.session_id, row.turn_id)


def end(
    uow: UnitOfWork, time: Occurrence, result: OccurrenceResult, now: float
) -> tuple[Occurrence, Reply | None] | None:
    known, schedule = uow.schedules.occurrence(time.schedule_id, time.due_at), uow.schedules.get(time.schedule_id)
    if schedule is None or known is None or known.state not in (OccurrenceState.WAITING, OccurrenceState.RUNNING):
        return None
    stored = outcome(uow, known) if result.text else None
    if stored is not None:
        # As the turn keeps it: a part of it may have been forgotten since.
        result = replace(result, text=stored.text)
    problem = result.problem or ("" if result.text.strip() else "the answer was empty")
    problem = uow.erasure.erase_facts(problem[:_ERROR_CHARS_MAX], schedule.owner)
    ended = replace(known, session_id=result.session_id or None, ended_at=now, problem=problem[:_PROBLEM_CHARS_MAX])
    if problem:
        _report(uow, ended, f"{schedule.name}: {problem}", now)
    target, reply = schedule.target, None
    if target.kind is TargetKind.CHAT and result.turn_id:
        text = result.text or f"The scheduled task {quote_start(schedule.name)} failed: {result.chat_text or problem}"
        key = SessionKey.parse(target.to)
        # The reply has the turn's id, so that forgetting the turn erases it too.
        reply = uow.outbox.put_reply(
            Reply(result.turn_id, key, result.session_id, schedule.owner, text, ReplyState.READY, now)
        )
    later = target.kind is TargetKind.WEBHOOK or (target.kind not in (TargetKind.NONE, TargetKind.CHAT) and result.text)
    if later and result.turn_id:
        state = OccurrenceState.DELIVERING
    else:
        state = OccurrenceState.FAILED if problem else OccurrenceState.DONE
    ended = replace(ended, state=state)
    uow.schedules.save_occurrence(ended)
    return ended, reply


def _report(uow: UnitOfWork, time: Occurrence, problem: str, now: float) -> None:
    uow.incidents.add(Incident(now, "schedule", time.session_id, f"a scheduled task failed: {problem}"))
