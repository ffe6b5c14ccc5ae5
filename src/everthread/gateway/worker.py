"""Doing what waits at each key: messages are answered one after another, commands act in their place among them.

Keys are served side by side, each by a task that lives while there is something to do. All that is known here can be
read again from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from everthread.agent.events import TurnEnded
from everthread.agent.turn_options import TurnOptions
from everthread.commands.registry import ParsedCommand, parse
from everthread.concurrency import until_done
from everthread.domain.errors import BadConfig, Busy, StoreError
from everthread.domain.model import (
    InboxRow,
    Message,
    Role,
    SessionKey,
    SessionRef,
    TurnStatus,
)
from everthread.gateway.attachments import Unpacking
from everthread.gateway.command_runner import Bench, Ordering, skips_queue
from everthread.gateway.outbox import Outbox
from everthread.gateway.turn_events import Hear, Listener
from everthread.lifecycle import TurnClaim
from everthread.log_context import log_fields

log = logging.getLogger("everthread.gateway")

BUSY_LOOK_S = 0.25
BUSY_S_MAX = 5.0
STOPPED_FIRST = "stopped before it was begun"
STORE_PAUSE_S = 2.0
GIVE_BACK_S = 0.5

_UNSEEN = (TurnStatus.LATE, TurnStatus.HIDDEN)


class _Place:
    """A key while something is done there."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.working: asyncio.Future[None] | None = None
        self.woken = False
        self.orders: deque[InboxRow] = deque()
        """Commands that act at once, in their order."""
        self.ordering: asyncio.Future[None] | None = None
        self.doing: set[int] = set()
        """Commands that are being carried out."""
        self.cut_off: deque[str] = deque()
        """Turns that a process which is gone had begun."""
        self.at: SessionRef | None = None
        """Where a turn runs."""
        self.user = ""
        """Who wrote what it answers."""
        self.behind: list[int] = []
        """Messages that came in while none did, to be steered by if one does."""

        self.beginning = False
        """A turn is being begun, and nobody was told of it yet."""
        self.stop_before: int | None = None
        """A turn that is begun next is stopped at once, if its message came in before that."""

    def begin(self, ticket: TurnClaim) -> bool:
        """A turn has begun; whether it is to be stopped at once."""
        self.at, self.user = ticket.ref, ticket.message.inbound.user
        self.beginning, stop_before, self.stop_before = False, self.stop_before, None
        return stop_before is not None and ticket.message.id < stop_before


class Worker:
    """The keys where something is done now."""

    def __init__(self, bench: Bench, delivery: Outbox, served: Callable[[str], bool], unpacking: Unpacking) -> None:
        """`served` says whether what is said on a platform goes out by way of the outbox."""
        self._bench = bench
        self._delivery = delivery
        self._served = served
        self._unpacking = unpacking
        self._places: dict[SessionKey, _Place] = {}
        self._hearing: dict[int, Hear] = {}
        self._freed: dict[str, asyncio.Event] = {}
        self._ordering = Ordering(bench, delivery, served, self._hearing)
        self._stopping = False
        self.answered = 0

    @property
    def busy(self) -> int:
        """How many keys are being served."""
        return len(self._places)

    @property
    def running(self) -> int:
        return sum(1 for place in self._places.values() if place.at is not None)

    @property
    def waited_for(self) -> int:
        """Of how many messages somebody waits to hear."""
        return len(self._hearing)

    def hear(self, inbox_id: int, hear: Hear) -> None:
        """Tell of what becomes of a message, until `unhear`. To be called before it is taken up."""
        self._hearing[inbox_id] = hear

    def unhear(self, inbox_id: int) -> None:
        self._hearing.pop(inbox_id, None)

    def take(self, row: InboxRow, busy: str) -> None:
        """Something came in: a command that skips the queue acts at once. `busy` says what to do while a turn runs."""
        place = self._place(row.inbound.key)
        if row.inbound.command and skips_queue(row):
            self._order(place, row)
        elif not row.inbound.command and busy == "steer":
            place.behind.append(row.id)
            self._unpacking.begin(row, lambda: self._steer(place))
            self._steer(place)
        elif not row.inbound.command and busy == "interrupt" and place.at is not None:
            self._bench.agent.stop(place.at.session_id, "interrupted by a newer message")
        self._unpacking.begin(row)
        self._wake(place)

    def _steer(self, place: _Place) -> None:
        """By what came in, in its order: nothing overtakes what is still being unpacked. What waits no longer steers
        nothing.
        """
        while place.at is not None and place.behind and not self._unpacking.holds(place.behind[0]):
            self._bench.agent.steer(place.at.session_id, place.behind.pop(0))

    def wake(self, key: SessionKey) -> None:
        """Something may wait there."""
        self._wake(self._place(key))

    async def recover(self, served: Callable[[str], bool]) -> None:
        """Take up what processes that are gone have left on these platforms: turns, commands, messages."""
        store, now = self._bench.store, self._bench.clock.now()
        here = {turn for place in self._places.values() for turn in place.cut_off}
        orphans = await store.read_inline(lambda uow: uow.slots.orphans(now))
        mine = {slot.turn_id: slot for slot in orphans if served(slot.ref.key.platform)}
        again = await self._bench.lifecycle.recover() if orphans else ()
        for turn_id in again:
            if turn_id in mine and turn_id not in here:
                place = self._place(mine[turn_id].ref.key)
                place.cut_off.append(turn_id)
                self._wake(place)
        for key in await store.read(lambda uow: uow.inbox.keys_waiting()):
            if not served(key.platform) or key in self._places:
                continue
            rows = await store.read_inline(lambda uow, key=key: uow.inbox.commands(key))
            place = self._place(key)
            for row in rows:
                if skips_queue(row):
                    self._order(place, row)
            self._wake(place)

    async def finish(self, deadline: float) -> None:
        """Begin nothing more, let what runs end until then, by the loop's clock; what has not is given back for another
        process.
        """
        self._stopping = True
        await self._unpacking.finish()
        while (tasks := self._tasks()) and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tasks, timeout=left)
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            # A turn is given back first; what takes longer is a platform that is shown the end of it.
            await asyncio.wait(tasks, timeout=GIVE_BACK_S)

    def _tasks(self) -> list[asyncio.Future[None]]:
        both = [task for place in self._places.values() for task in (place.working, place.ordering)]
        return [task for task in both if task is not None and not task.done()]

    # --- Places ------------------------------------------------------------------------------------------------------

    def _place(self, key: SessionKey) -> _Place:
        return self._places.setdefault(key, _Place(key))

    def _wake(self, place: _Place) -> None:
        place.woken = True
        if place.working is None and not self._stopping:
            place.working = asyncio.ensure_future(self._work(place))
        elif self._stopping:
            self._leave(place)

    def _leave(self, place: _Place) -> None:
        if place.working is None and place.ordering is None:
            self._places.pop(place.key, None)

    async def _work(self, place: _Place) -> None:
        try:
            while not self._stopping:
                place.woken = False
                try:
                    more = await self._next(place)
                except StoreError as error:
                    log.warning(
                        "what waits at %s has to wait longer: %s", place.key, error, extra=log_fields(place.key)
                    )
                    await self._bench.clock.sleep(STORE_PAUSE_S)
                    continue
                if not more and not place.woken:
                    break
        except Exception:
            # A mistake of ours. What waits is looked at again with the next message, or the next sweep.
            log.exception("what waits at %s was left", place.key, extra=log_fields(place.key))
        finally:
            place.working = None
            self._leave(place)

    async def _next(self, place: _Place) -> bool:
        """Do the next thing there is to do; false if there is none."""
        if place.cut_off:
            turn_id = place.cut_off[0]
            await self._answer(
                place,
                lambda manner: self._bench.agent.resume(turn_id, manner),
                lambda: self._bench.lifecycle.resume_turn(turn_id),
            )
            place.cut_off.popleft()
            return True
        row = await self._bench.store.read_inline(lambda uow: uow.inbox.next(place.key))
        if row is None:
            return False
        if row.inbound.command:
            if skips_queue(row):
                if place.ordering is None:
                    self._order(place, row)
                if place.ordering is not None:
                    await asyncio.wait({place.ordering})
            elif row.id in place.doing and place.ordering is not None:
                await asyncio.wait({place.ordering})
            else:
                await self._carry_out(place, row)
            return True
        if row.inbound.is_packed:
            await self._unpacking.wait(row)
            return True
        return await self._answer(
            place,
            lambda manner: self._bench.agent.answer(place.key, manner),
            lambda: self._bench.lifecycle.begin_turn(place.key),
        )

    # --- Messages ----------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        place: _Place,
        ask: Callable[[TurnOptions], Awaitable[TurnEnded | None]],
        take: Callable[[], Awaitable[TurnClaim | None]],
    ) -> bool:
        platform = place.key.platform
        model = await self._bench.store.read_inline(lambda uow: uow.sessions.chosen_model(place.key))
        try:
            choices = self._bench.choices(model)
        except BadConfig as error:
            return await self._keep_unanswered(place, take, error)
        showing = self._bench.showing(platform)
        listener = Listener(partial(self._begun, place), showing, self._hearing, self._delivery.hold)
        approve = self._bench.approvals.of_turn(lambda: place.user)
        manner = TurnOptions(
            choices, listener.hear, approve, outbox=self._served(platform), is_guest=self._bench.is_guest
        )
        place.beginning = True
        try:
            ended = await ask(manner)
        except Busy:
            place.beginning = False
            await self._until_free(place)
            return True
        finally:
            where, place.at, place.beginning = place.at, None, False
            if where is not None:
                self._free(where.session_id)
            if showing is not None:
                # One that has not ended was given back: somebody goes on with it, in the same message.
                late = listener.ended is not None and listener.ended.committed.status in _UNSEEN
                # Seen through: under which id something is out is known here alone until it is written down.
                ending = asyncio.ensure_future(showing.end(withheld=late))
                stopped = await until_done(ending)
                self._delivery.release(listener.turn_id)
                ending.result()
                if stopped is not None:
                    raise stopped
        if ended is None:
            return True
        self.answered += 1
        if ended.committed.number == 1:
            # That the conversation before it has ended by itself is said first.
            await self._delivery.sweep()
        if ended.committed.reply is not None:
            self._delivery.put(ended.committed.reply)
        return True

    def _begun(self, place: _Place, ticket: TurnClaim) -> None:
        if place.begin(ticket):
            self._bench.agent.stop(ticket.ref.session_id, STOPPED_FIRST)

    async def stop_next(self, key: SessionKey, order: int) -> bool:
        """Stop what is about to be answered there, and came in before that command. False if there is nothing."""
        place = self._place(key)
        if not place.beginning:
            first = await self._bench.store.read_inline(lambda uow: uow.inbox.first_waiting(key))
            if place.at is not None or first is None or first.id > order:
                return False
        place.stop_before = order
        self._wake(place)
        return True

    async def _keep_unanswered(
        self, place: _Place, take: Callable[[], Awaitable[TurnClaim | None]], error: BadConfig
    ) -> bool:
        """No model can be asked: the message is kept in its session, and whoever wrote it is told."""
        try:
            ticket = await take()
        except Busy:
            await self._until_free(place)
            return True
        if ticket is None:
            return True
        messages = [Message(Role.USER, text) for text in ticket.texts]
        log.error(
            "no model can be asked: %s", error, extra=log_fields(place.key, ticket.ref.session_id, ticket.turn_id)
        )
        told = (
            "I can't answer now: no model is set up for me. Your message is kept."
            if self._served(place.key.platform)
            else None
        )
        committed = await self._bench.lifecycle.commit_turn(ticket, messages, told, interrupted=True)
        if committed.reply is not None:
            self._delivery.put(committed.reply)
        if (hear := self._hearing.get(ticket.message.id)) is not None:
            hear(TurnEnded(committed, "", str(error), error))
        return True

    async def _until_free(self, place: _Place) -> None:
        """Another key is answered in the same session: wait for it. That another process is done is seen by whether
        anything was written at all, which is all that is asked while nothing is.
        """
        store, here = self._bench.store, await self._bench.lifecycle.current(place.key)
        if here is None:
            return
        freed, seen = self._freed.setdefault(here.session_id, asyncio.Event()), -1
        loop = asyncio.get_running_loop()
        until = loop.time() + BUSY_S_MAX
        while not (freed.is_set() or place.woken or self._stopping) and loop.time() < until:
            if (now := await store.changed()) != seen:
                seen = now
                if await store.read_inline(lambda uow: uow.slots.live(here.session_id)) is None:
                    break
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_LOOK_S):
                    await freed.wait()
        # Whoever else waits looks again as well.
        if self._freed.get(here.session_id) is freed:
            self._free(here.session_id)

    def _free(self, session_id: str) -> None:
        if (freed := self._freed.pop(session_id, None)) is not None:
            freed.set()

    # --- Commands ----------------------------------------------------------------------------------------------------

    def _order(self, place: _Place, row: InboxRow) -> None:
        if all(known.id != row.id for known in place.orders):
            place.orders.append(row)
        if place.ordering is None:
            place.ordering = asyncio.ensure_future(self._carry_out_all(place))

    async def _carry_out_all(self, place: _Place) -> None:
        try:
            while place.orders:
                try:
                    await self._carry_out_before(place, place.orders[0])
                    await self._carry_out(place, place.orders[0])
                    place.orders.popleft()
                    continue
                except StoreError as error:
                    log.warning("a command at %s has to wait: %s", place.key, error, extra=log_fields(place.key))
                except Exception:
                    # A mistake of ours. It still stands in the inbox; those behind it come first now.
                    log.exception("a command at %s was left", place.key, extra=log_fields(place.key))
                    place.orders.popleft()
                if self._stopping:
                    break
                await self._bench.clock.sleep(STORE_PAUSE_S)
        finally:
            place.ordering = None
            self._leave(place)

    async def _carry_out_before(self, place: _Place, row: InboxRow) -> None:
        """What was asked for before a boundary is meant for the conversation that it leaves."""
        found = parse(row.inbound.text)
        if not isinstance(found, ParsedCommand) or not found.command.crosses:
            return
        for before in await self._bench.store.read_inline(lambda uow: uow.inbox.commands(place.key)):
            if before.id < row.id and before.id not in place.doing and not skips_queue(before):
                await self._carry_out(place, before)

    async def _carry_out(self, place: _Place, row: InboxRow) -> None:
        place.doing.add(row.id)
        try:
            if await self._ordering.carry_out(row):
                self.wake(row.inbound.key)
        finally:
            place.doing.discard(row.id)
