"""Doing what is scheduled: when a time comes it is written down, asked of the agent, and its answer handed over.

All that is known here can be read again from the store. How often the store is looked at does not depend on how many
tasks there are: it says when the next one is due, and which times are not over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from everthread.agent.events import TurnEnded
from everthread.agent.model_call import ModelChoice
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnOptions
from everthread.config.settings import Settings
from everthread.domain.backoff import Backoff
from everthread.domain.boundary import Expire
from everthread.domain.errors import BadConfig, Busy, StoreError
from everthread.domain.model import InboxState, Reply, SessionKey
from everthread.domain.reset_policy import ResetPolicy
from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule, key_of
from everthread.domain.text_format import REFERENCE_CHARS, to_a_guest
from everthread.gateway.schedule_output import POST_S_MAX, NotHandedOver, hand_over
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.schedules import Outcome, Scheduling
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

LOOK_S = 1.0
PUT_BACK_S = 30.0
"""A clock that shows so much less than before was put back."""
PARALLEL_MAX = 4
NOT_DONE = "something is not set up as it should be."
TURNED_OUT = "it is paused, as {owner} may write to you no more"
OPEN_MAX = 256
HAND_OVER_MAX = 12
"""About a day and a half, with the pauses between."""
NEVER_ENDED = "to hand it over was tried {count} times and never came to an end; `everthread logs` says more"
CLAIM_S = 2 * POST_S_MAX
"""So long nobody else hands it over; after that, whoever wanted to is gone."""
RETRY = Backoff(first_s=10.0, max_s=6 * 3600.0, factor=4.0)
_OVER = ResetPolicy(idle_s=1.0)
"""The session of one time expires as soon as that is over."""

Time = tuple[str, float]


class Scheduler:
    """Does what is due, for as long as it runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lifecycle: Lifecycle,
        scheduling: Scheduling,
        agent: Agent,
        choices: Callable[[str], Sequence[ModelChoice]],
        settings: Settings,
        put: Callable[[Reply], None],
        is_turned_out: Callable[[UnitOfWork, str], bool],
        look_s: float = LOOK_S,
    ) -> None:
        """`put` has a reply sent that is in the outbox. Nothing is done for an owner who is turned out. Every `look_s`
        it is seen what others have added or left.
        """
        self._store = store
        self._clock = clock
        self._lifecycle = lifecycle
        self._scheduling = scheduling
        self._agent = agent
        self._choices = choices
        self._settings = settings
        self._put = put
        self._is_turned_out = is_turned_out
        self._look_s = look_s
        self._doing: dict[Time, asyncio.Future[None]] = {}
        self._seen_at = 0.0

    @property
    def doing(self) -> int:
        return len(self._doing)

    async def run(self) -> None:
        """Until it is cancelled. What is being done then goes on until `finish`."""
        while True:
            wait_s = self._look_s
            try:
                await self.look()
                next_at = await self._store.read_inline(lambda uow: uow.schedules.next_at())
                if next_at is not None:
                    wait_s = min(max(next_at - self._clock.now(), 0.0), self._look_s)
            except StoreError as error:
                log.warning("scheduled tasks have to wait: %s", error)
            except Exception:
                log.exception("scheduled tasks are looked at again later")
            await self._clock.sleep(wait_s)

    async def look(self) -> None:
        """Write down what has come, and begin what is not begun or was left behind."""
        now = self._clock.now()
        if now < self._seen_at - PUT_BACK_S or not self._seen_at:
            await self._scheduling.look_again()
        self._seen_at = now
        # By the time that was noted: a clock put back after this must be seen to have been.
        await self._scheduling.fire_due(now)
        # Some of one task wait for another time of it: look behind them.
        for time in await self._store.read_inline(lambda uow: uow.schedules.open_times(now, OPEN_MAX)):
            if len(self._doing) >= PARALLEL_MAX:
                break
            self._take_up(time)

    def _take_up(self, time: Occurrence) -> None:
        name = (time.schedule_id, time.due_at)
        busy = any(schedule_id == time.schedule_id for schedule_id, _ in self._doing)
        if name in self._doing or (busy and time.state is OccurrenceState.WAITING):
            return
        self._doing[name] = task = asyncio.ensure_future(self._see_to(time))
        task.add_done_callback(lambda _: self._doing.pop(name, None))

    async def finish(self, deadline: float) -> None:
        """Let what is being done end until then, by the loop's clock; the rest is given back for another process."""
        while self._doing and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._doing.values(), timeout=left)
        tasks = list(self._doing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _see_to(self, time: Occurrence) -> None:
        try:
            await self.see_to(time)
        except StoreError as error:
            log.warning("a scheduled task has to wait: %s", error, extra={"schedule": time.schedule_id})
        except Exception:
            log.exception("a scheduled task failed", extra={"schedule": time.schedule_id})

    async def see_to(self, time: Occurrence) -> Occurrence | None:
        """See one time through from wherever it is; what became of it. `None` if somebody else does it."""
        schedule = await self._store.read_inline(lambda uow: uow.schedules.get(time.schedule_id))
        if schedule is None:
            return None
        if time.state is not OccurrenceState.DELIVERING:
            came = await self._outcome(schedule, time)
            ended = await self._scheduling.end(time, came) if came is not None else None
            if ended is None:
                return None
            time, reply = ended
            log.info("scheduled task %s: %s", schedule.name, time.problem or "done", extra={"schedule": schedule.id})
            if reply is not None:
                self._put(reply)
            await self._leave(schedule)
        if time.state is OccurrenceState.DELIVERING:
            await self._hand_over(schedule, time)
        return await self._store.read_inline(lambda uow: uow.schedules.time(time.schedule_id, time.due_at))

    async def _outcome(self, schedule: Schedule, time: Occurrence) -> Outcome | None:
        """What it comes to; `None` if another process is at it."""
        begun = time.state is OccurrenceState.RUNNING
        if begun and not await self._store.read_inline(lambda uow: self._is_left(uow, time)):
            return None
        if not begun and await self._store.read_inline(lambda uow: self._is_turned_out(uow, schedule.owner)):
            await self._scheduling.pause(schedule)
            return Outcome("", TURNED_OUT.format(owner=schedule.owner))
        try:
            choices = self._choices(schedule.model)
        except BadConfig as error:
            # No turn was begun. Whoever waits for the answer is told all the same, under a name of its own.
            name = f"undone-{schedule.id}-{time.due_at:.0f}"
            log.warning(
                "%s: no model can be asked: %s", _reference(schedule.id), error, extra={"schedule": schedule.id}
            )
            return Outcome("", str(error), turn_id=name, told=self._told(schedule, schedule.id))
        asked = await self._lifecycle.begin_scheduled(schedule.id, time.due_at, self._settings.profile)
        if asked is None:
            return None
        key, row = asked
        if row.state is not InboxState.DONE:
            tools = frozenset(schedule.tools) if schedule.tools is not None else None
            # Of one that is over with its answer, nothing need be summarised for later.
            manner = TurnOptions(choices, lasting=schedule.continues, tools=tools, spend=schedule.spend)
            ended = await self._answer(key, manner)
            if ended is not None:
                turn_id = await self._turn_of(row.id)
                session_id, told = ended.committed.ref.session_id, self._told(schedule, turn_id)
                return Outcome(ended.text, ended.problem, session_id, turn_id, told)
        known = await self._store.read_inline(lambda uow: uow.schedules.time(time.schedule_id, time.due_at))
        return await self._scheduling.outcome(known) if known is not None else None

    def _told(self, schedule: Schedule, name: str) -> str:
        return "" if schedule.owner == self._settings.owner else to_a_guest(NOT_DONE, _reference(name))

    async def _answer(self, key: SessionKey, manner: TurnOptions) -> TurnEnded | None:
        try:
            ended = await self._agent.answer(key, manner)
            if ended is not None:
                return ended
            _, session = await self._store.read_inline(lambda uow: uow.sessions.at(key))
            running = (
                await self._store.read_inline(lambda uow: uow.slots.live(session.id)) if session is not None else None
            )
            return await self._agent.resume(running.turn_id, manner) if running is not None else None
        except Busy:
            # Somebody has come to talk in its conversation: another time.
            return None

    async def _turn_of(self, inbox_id: int) -> str:
        row = await self._store.read_inline(lambda uow: uow.inbox.get(inbox_id))
        return row.turn_id or "" if row is not None else ""

    def _is_left(self, uow: UnitOfWork, time: Occurrence) -> bool:
        """Whether nobody who is there is at it: not begun, ended without a word, or begun by a process that is gone."""
        row = uow.inbox.get(time.inbox_id or 0)
        if row is None or row.state is not InboxState.RUNNING:
            return True
        return any(slot.turn_id == row.turn_id for slot in uow.slots.orphans(self._clock.now()))

    async def _leave(self, schedule: Schedule) -> None:
        """Unless it is gone on with, nobody will say anything in its conversation any more."""
        if not schedule.continues:
            key, at = key_of(schedule, self._settings.profile), self._clock.now() + 2.0
            # If that fails, it is only open until the next time.
            with suppress(StoreError):
                await self._lifecycle.cross(key, Expire(_OVER, at), owner=schedule.owner, actor="schedule")

    async def _hand_over(self, schedule: Schedule, time: Occurrence) -> None:
        now = self._clock.now()
        if not await self._scheduling.claim(time, now + CLAIM_S):
            return
        if time.attempts >= HAND_OVER_MAX:
            # What failed in ways that nobody foresaw, or ended the process each time, has said nothing of it.
            await self._scheduling.not_handed_over(time, NEVER_ENDED.format(count=time.attempts), None)
            return
        came = await self._scheduling.outcome(time) or Outcome("", "its answer is gone")
        try:
            await hand_over(self._settings, schedule, time, came, now)
        except NotHandedOver as error:
            last = error.for_good or time.attempts + 1 >= HAND_OVER_MAX
            pause_s = RETRY.delay_s(time.attempts + 1)
            log.warning("scheduled task %s: %s", schedule.name, error, extra={"schedule": schedule.id})
            await self._scheduling.not_handed_over(time, str(error), None if last else now + pause_s)
        else:
            await self._scheduling.handed_over(time)


def _reference(name: str) -> str:
    return name[-REFERENCE_CHARS:]
