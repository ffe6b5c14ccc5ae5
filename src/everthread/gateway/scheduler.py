"""Run scheduled tasks: record each due occurrence, run its turn, and deliver its result.

All state can be read again from the store. The cost of polling does not depend on the number of tasks: the store tells
when the next one is due, and which occurrences are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from everthread.agent.events import TurnEnded
from everthread.agent.model_call import ModelChoice
from everthread.agent.rights import RightsLookup
from everthread.agent.store_retry import StoreRetries
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnOptions
from everthread.concurrency import finish_tasks
from everthread.config.schema import Settings
from everthread.domain.boundary import Expire
from everthread.domain.clock_rules import ClockWatch
from everthread.domain.errors import BadConfig, Busy, StoreError
from everthread.domain.model import InboxState, Reply, SessionKey, Slot
from everthread.domain.reset_policy import ResetPolicy
from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule, TargetKind, key_of
from everthread.domain.text_format import REFERENCE_CHARS, guest_error
from everthread.gateway.schedule_output import DELIVERY_ATTEMPTS_MAX, POST_S_MAX, RETRY, OutputFailed, deliver
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.schedules import OccurrenceResult, ScheduleService
from everthread.log_context import Private, log_scope
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

POLL_S = 1.0
PARALLEL_MAX = 4
CONFIG_PROBLEM = "the configuration has a problem."
EXCLUDED = "it is paused, because {owner} may no longer write to you"
OPEN_MAX = 256
DELIVERY_FAILED = "its delivery failed {count} times; see `everthread logs`"
CLAIM_S = 2 * POST_S_MAX
"""No other process delivers it for this time; after that, the claiming process counts as dead."""
_OVER = ResetPolicy(idle_s=1.0)
"""The session of an occurrence expires as soon as the occurrence is over."""

OccurrenceId = tuple[str, float]


class Scheduler:
    """Runs the due tasks until it is stopped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lifecycle: Lifecycle,
        scheduling: ScheduleService,
        agent: Agent,
        rights: RightsLookup,
        choices: Callable[[str], Sequence[ModelChoice]],
        settings: Settings,
        put: Callable[[Reply], None],
        is_excluded: Callable[[UnitOfWork, str], bool],
        poll_s: float = POLL_S,
    ) -> None:
        """`put` sends a stored reply. Tasks of an excluded owner are paused. `poll_s` is the interval at which tasks of
        other processes are noticed.
        """
        self._store = store
        self._clock = clock
        self._lifecycle = lifecycle
        self._scheduling = scheduling
        self._agent = agent
        self._rights = rights
        self._choices = choices
        self._settings = settings
        self._put = put
        self._is_excluded = is_excluded
        self._poll_s = poll_s
        self._tasks: dict[OccurrenceId, asyncio.Future[None]] = {}
        self._watch = ClockWatch()
        self._retries = StoreRetries(store, clock, "schedule")
        self._problem = ""
        """The last problem of polling that was logged."""

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        """Poll until cancelled. Running tasks go on until `finish`."""
        while True:
            wait_s = self._poll_s
            try:
                await self.poll()
                next_at = await self._store.read_inline(lambda uow: uow.schedules.next_at())
                if next_at is not None:
                    wait_s = min(max(next_at - self._clock.now(), 0.0), self._poll_s)
                self._problem = ""
            except StoreError as error:
                # Once for each problem: the store may be unavailable for long.
                if str(error) != self._problem:
                    self._problem = str(error)
                    log.warning("scheduled tasks are delayed: %s", error)
            except Exception:
                log.exception("polling scheduled tasks failed; retrying")
            await self._clock.sleep(wait_s)

    async def poll(self) -> None:
        """Record due occurrences, and start those that are new or abandoned."""
        now, elapsed = self._clock.now(), self._clock.elapsed()
        if self._watch.is_set_back(now, elapsed):
            await self._scheduling.replan()
            self._watch.accept(now, elapsed)
        # With the watched time: a clock that is set back after this must be noticed.
        await self._scheduling.fire_due(now)
        # An occurrence may wait for another one of its task: look past it.
        for time in await self._store.read_inline(lambda uow: uow.schedules.open_occurrences(now, OPEN_MAX)):
            if len(self._tasks) >= PARALLEL_MAX:
                break
            self._start(time)

    def _start(self, time: Occurrence) -> None:
        name = (time.schedule_id, time.due_at)
        busy = any(schedule_id == time.schedule_id for schedule_id, _ in self._tasks)
        if name in self._tasks or (busy and time.state is OccurrenceState.WAITING):
            return
        self._tasks[name] = task = asyncio.ensure_future(self._run(time))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def finish(self, deadline: float) -> None:
        """Wait for running tasks until `deadline`, by the loop's clock; release the rest for another process."""
        await finish_tasks(self._tasks.values, deadline)
        await self._retries.aclose()

    async def _run(self, time: Occurrence) -> None:
        try:
            with log_scope(**_fields(time)):
                await self.run_occurrence(time)
        except StoreError as error:
            log.warning("a scheduled task is delayed: %s", error, extra=_fields(time))
        except Exception:
            log.exception("a scheduled task failed", extra=_fields(time))

    async def run_occurrence(self, time: Occurrence) -> Occurrence | None:
        """Run an occurrence from its current state to its end; return `None` if another process does."""
        schedule = await self._store.read_inline(lambda uow: uow.schedules.get(time.schedule_id))
        if schedule is None:
            return None
        if time.state is not OccurrenceState.DELIVERING:
            outcome = await self._outcome(schedule, time)
            ended = await self._scheduling.end(time, outcome) if outcome is not None else None
            if ended is None:
                return None
            time, reply = ended
            self._log_end(schedule, time)
            if reply is not None:
                self._put(reply)
            await self._expire_session(schedule)
        if time.state is OccurrenceState.DELIVERING:
            await self._deliver(schedule, time)
        return await self._store.read_inline(lambda uow: uow.schedules.occurrence(time.schedule_id, time.due_at))

    def _log_end(self, schedule: Schedule, time: Occurrence) -> None:
        if time.problem:
            log.warning("a scheduled task failed: %s", Private(time.problem), extra=_fields(schedule))
        else:
            log.info("a scheduled task is done", extra=_fields(schedule))

    async def _outcome(self, schedule: Schedule, time: Occurrence) -> OccurrenceResult | None:
        """Run the turn and return its outcome; `None` if another process runs it."""
        begun = time.state is OccurrenceState.RUNNING
        if begun and not await self._store.read_inline(lambda uow: self._is_abandoned(uow, time)):
            return None
        if not begun and await self._store.read_inline(lambda uow: self._is_excluded(uow, schedule.owner)):
            await self._scheduling.pause(schedule)
            return OccurrenceResult("", EXCLUDED.format(owner=schedule.owner))
        try:
            rights = await self._rights.of_owner(schedule.owner)
            choices = self._choices(rights.granted_model(schedule.model))
        except BadConfig as error:
            # No turn was begun, so the reply gets an id of its own.
            name = f"undone-{schedule.id}-{time.due_at:.0f}"
            fields = {**_fields(schedule), "reference": _reference(schedule.id)}
            log.warning("no model can be called: %s", error, extra=fields)
            return OccurrenceResult("", str(error), turn_id=name, chat_text=self._guest_text(schedule, schedule.id))
        asked = await self._lifecycle.begin_scheduled(schedule.id, time.due_at, self._settings.profile)
        if asked is None:
            return None
        key, row = asked
        if row.state is not InboxState.DONE:
            tools = frozenset(schedule.tools) if schedule.tools is not None else None
            # A session that ends with its answer needs no summary.
            options = TurnOptions(choices, lasting=schedule.continues, tools=tools, spend=schedule.spend)
            ended = await self._answer(key, options)
            if ended is not None:
                answered = await self._store.read_inline(lambda uow: uow.inbox.get(row.id))
                turn_id = (answered and answered.turn_id) or ""
                session_id, text = ended.committed.ref.session_id, self._guest_text(schedule, turn_id)
                return OccurrenceResult(ended.text, ended.problem, session_id, turn_id, text)
        known = await self._store.read_inline(lambda uow: uow.schedules.occurrence(time.schedule_id, time.due_at))
        return await self._scheduling.outcome(known) if known is not None else None

    def _guest_text(self, schedule: Schedule, name: str) -> str:
        return "" if schedule.owner == self._settings.owner else guest_error(CONFIG_PROBLEM, _reference(name))

    async def _answer(self, key: SessionKey, options: TurnOptions) -> TurnEnded | None:
        try:
            ended = await self._agent.answer(key, options)
            if ended is not None:
                return ended
            running = await self._store.read_inline(lambda uow: _live_slot(uow, key))
            return await self._agent.resume(running.turn_id, options) if running is not None else None
        except Busy:
            # Another turn runs in its session; try at the next poll.
            return None

    def _is_abandoned(self, uow: UnitOfWork, time: Occurrence) -> bool:
        """Return true if no live process runs it: not begun, ended without a result, or begun by a dead process."""
        row = uow.inbox.get(time.inbox_id or 0)
        if row is None or row.state is not InboxState.RUNNING:
            return True
        return any(slot.turn_id == row.turn_id for slot in uow.slots.orphans(self._clock.now()))

    async def _expire_session(self, schedule: Schedule) -> None:
        """Expire the session of an occurrence, unless the task continues it."""
        if not schedule.continues:
            key = key_of(schedule, self._settings.profile)

            async def expire() -> None:
                at = self._clock.now() + 2.0
                await self._lifecycle.cross(key, Expire(_OVER, at), owner=schedule.owner, actor="schedule")

            await self._retries.run("end the session of a scheduled task", expire)

    async def _deliver(self, schedule: Schedule, time: Occurrence) -> None:
        now = self._clock.now()
        if not await self._scheduling.claim(time, now + CLAIM_S):
            return
        if time.attempts >= DELIVERY_ATTEMPTS_MAX:
            # Every attempt failed in an unforeseen way or ended the process, so none recorded a problem.
            await self._scheduling.mark_delivery_failed(time, DELIVERY_FAILED.format(count=time.attempts), None)
            return
        try:
            await self._write_output(time, now)
        except OutputFailed as error:
            last = error.is_final or time.attempts + 1 >= DELIVERY_ATTEMPTS_MAX
            pause_s = RETRY.delay_s(time.attempts + 1)
            log.warning(
                "the result of a scheduled task was not delivered: %s",
                error,
                extra=_fields(schedule),
            )
            await self._scheduling.mark_delivery_failed(time, str(error), None if last else now + pause_s)
        else:
            await self._scheduling.mark_delivered(time)

    async def _write_output(self, time: Occurrence, now: float) -> None:
        """Deliver the result as it is stored. If something is forgotten meanwhile, write a file again without it."""
        output, written = await self._scheduling.output(time), ""
        while output is not None:
            await deliver(self._settings, output, time.attempts > 0, now, written)
            if output.schedule.target.kind is TargetKind.WEBHOOK or await self._scheduling.is_current(output):
                return
            output, written = await self._scheduling.output(time), output.result.text
            if output is not None and output.result.text == written:
                return


def _live_slot(uow: UnitOfWork, key: SessionKey) -> Slot | None:
    _, session = uow.sessions.at(key)
    return uow.slots.live(session.id) if session is not None else None


def _fields(of: Schedule | Occurrence) -> dict[str, str]:
    return {"schedule": of.id if isinstance(of, Schedule) else of.schedule_id, "owner": of.owner}


def _reference(name: str) -> str:
    return name[-REFERENCE_CHARS:]
