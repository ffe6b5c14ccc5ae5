"""Doing what waits at each key: messages are answered one after another, commands act in their place among them.

Keys are served side by side, each by a task that lives while there is something to do. All that is known here can be
read again from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from everthread.agent.asking import Choice
from everthread.agent.events import Steered, TurnBegan, TurnEnded, TurnEvent
from everthread.agent.turn import Agent, Manner
from everthread.agent.waiting import until_done
from everthread.commands import Desk, Order, Said, carry_out, parse
from everthread.domain.errors import BadConfig, Busy, DoneBefore, StoreError
from everthread.domain.model import (
    ChatType,
    InboxRow,
    InboxState,
    Message,
    Role,
    SessionKey,
    SessionRef,
    TurnStatus,
)
from everthread.gateway.delivery import Delivery
from everthread.gateway.places import at
from everthread.gateway.routing import is_shared
from everthread.gateway.streaming import Showing
from everthread.lifecycle import Lifecycle, Ticket
from everthread.ports import Clock, Store
from everthread.ports.platform import Button, File

log = logging.getLogger("everthread.gateway")

BUSY_LOOK_S = 0.25
STORE_PAUSE_S = 2.0
GIVE_BACK_S = 0.5
BEGUN_BEFORE = "This was begun before a restart; /status shows where you are now."
NOT_HERE = "Ask me that where we are alone: others would read here what is yours."
WENT_WRONG = "Something went wrong inside; it is in the log."
NO_LEAVING = "There is nothing to leave here: the conversation is kept, just come back."

_UNSEEN = (TurnStatus.LATE, TurnStatus.HIDDEN)


class SetAside(Struct, frozen=True):
    """A message will not be answered: its conversation was left before its turn came."""

    session_id: str


class Answered(Struct, frozen=True):
    """A command was carried out, and this is what is said to it."""

    said: Said


Hear = Callable[[TurnEvent | SetAside | Answered], None]
"""Told of what becomes of one message. Must return at once."""


class Bench(Protocol):
    """What the work is done with."""

    @property
    def lifecycle(self) -> Lifecycle: ...
    @property
    def store(self) -> Store: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def agent(self) -> Agent: ...

    def choices(self, model: str = "") -> Sequence[Choice]: ...
    def desk(self, row: InboxRow, model: str) -> Desk: ...
    def showing(self, platform: str) -> Showing | None:
        """How an answer is shown there while it is written; `None` where nothing is sent."""
        ...


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
        self.behind: list[int] = []
        """Messages that came in while none did, to be steered by if one does."""


class Working:
    """The keys where something is done now."""

    def __init__(self, bench: Bench, delivery: Delivery, served: Callable[[str], bool]) -> None:
        """`served` says whether what is said on a platform goes out by way of the outbox."""
        self._bench = bench
        self._delivery = delivery
        self._served = served
        self._places: dict[SessionKey, _Place] = {}
        self._hearing: dict[int, Hear] = {}
        self._freed: dict[str, asyncio.Event] = {}
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
        if row.inbound.command and _skips_queue(row):
            self._order(place, row)
        elif not row.inbound.command and busy == "steer":
            # Together with those before it, which it must not overtake; what waits no longer steers nothing.
            place.behind.append(row.id)
            if place.at is not None:
                for inbox_id in place.behind:
                    self._bench.agent.steer(place.at.session_id, inbox_id)
                place.behind.clear()
        elif not row.inbound.command and busy == "interrupt" and place.at is not None:
            self._bench.agent.stop(place.at.session_id, "interrupted by a newer message")
        self._wake(place)

    def wake(self, key: SessionKey) -> None:
        """Something may wait there."""
        self._wake(self._place(key))

    async def recover(self, served: Callable[[str], bool]) -> None:
        """Take up what processes that are gone have left on these platforms: turns, commands, messages."""
        store, now = self._bench.store, self._bench.clock.now()
        here = {turn for place in self._places.values() for turn in place.cut_off}
        orphans = await store.peek(lambda uow: uow.slots.orphans(now))
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
            rows = await store.peek(lambda uow, key=key: uow.inbox.commands(key))
            place = self._place(key)
            for row in rows:
                if _skips_queue(row):
                    self._order(place, row)
            self._wake(place)

    async def finish(self, deadline: float) -> None:
        """Begin nothing more, let what runs end until then; what has not is given back for the next process."""
        self._stopping = True
        while (tasks := self._tasks()) and (left := deadline - self._bench.clock.now()) > 0:
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
                    log.warning("what waits at %s has to wait longer: %s", place.key, error, extra=at(place.key))
                    await self._bench.clock.sleep(STORE_PAUSE_S)
                    continue
                if not more and not place.woken:
                    break
        except Exception:
            # A mistake of ours. What waits is looked at again with the next message, or the next sweep.
            log.exception("what waits at %s was left", place.key, extra=at(place.key))
        finally:
            place.working = None
            self._leave(place)

    async def _next(self, place: _Place) -> bool:
        """Do the next thing there is to do; false if there is none."""
        if place.cut_off:
            turn_id = place.cut_off[0]
            await self._answer(
                place,
                lambda manner: self._bench.agent.go_on(turn_id, manner),
                lambda: self._bench.lifecycle.resume_turn(turn_id),
            )
            place.cut_off.popleft()
            return True
        row = await self._bench.store.peek(lambda uow: uow.inbox.next(place.key))
        if row is None:
            return False
        if row.inbound.command:
            if _skips_queue(row):
                if place.ordering is None:
                    self._order(place, row)
                if place.ordering is not None:
                    await asyncio.wait({place.ordering})
            elif row.id in place.doing and place.ordering is not None:
                await asyncio.wait({place.ordering})
            else:
                await self._carry_out(place, row)
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
        ask: Callable[[Manner], Awaitable[TurnEnded | None]],
        take: Callable[[], Awaitable[Ticket | None]],
    ) -> bool:
        platform = place.key.platform
        model = await self._bench.store.peek(lambda uow: uow.sessions.chosen_model(place.key))
        try:
            choices = self._bench.choices(model)
        except BadConfig as error:
            return await self._keep_unanswered(place, take, error)
        showing = self._bench.showing(platform)
        listener = _Listener(place, showing, self._hearing, self._delivery.hold)
        manner = Manner(choices, listener.hear, outbox=self._served(platform))
        try:
            ended = await ask(manner)
        except Busy:
            await self._until_free(place)
            return True
        finally:
            where, place.at = place.at, None
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

    async def _keep_unanswered(
        self, place: _Place, take: Callable[[], Awaitable[Ticket | None]], error: BadConfig
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
        log.error("no model can be asked: %s", error, extra=at(place.key, ticket.ref.session_id, ticket.turn_id))
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
        """Another key is answered in the same session: wait for it. Another process's end is only seen by looking."""
        here = await self._bench.lifecycle.current(place.key)
        if here is None:
            return
        freed = self._freed.setdefault(here.session_id, asyncio.Event())
        try:
            async with asyncio.timeout(BUSY_LOOK_S):
                await freed.wait()
        except TimeoutError:
            # Whoever else waits looks again as well.
            if self._freed.get(here.session_id) is freed:
                del self._freed[here.session_id]

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
                    log.warning("a command at %s has to wait: %s", place.key, error, extra=at(place.key))
                except Exception:
                    # A mistake of ours. It still stands in the inbox; those behind it come first now.
                    log.exception("a command at %s was left", place.key, extra=at(place.key))
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
        if not isinstance(found, Order) or not found.command.crosses:
            return
        for before in await self._bench.store.peek(lambda uow: uow.inbox.commands(place.key)):
            if before.id < row.id and before.id not in place.doing and not _skips_queue(before):
                await self._carry_out(place, before)

    async def _carry_out(self, place: _Place, row: InboxRow) -> None:
        place.doing.add(row.id)
        try:
            await self._carry_out_once(row)
        finally:
            place.doing.discard(row.id)

    async def _carry_out_once(self, row: InboxRow) -> None:
        now = await self._bench.store.peek(lambda uow: uow.inbox.get(row.id))
        if now is None or now.state is InboxState.DONE:
            return
        said = await self._said(now)
        reply = await self._bench.lifecycle.answer_order(
            now, said.text if self._served(now.inbound.key.platform) else None
        )
        if said.model is not None:
            await self._bench.lifecycle.choose_model(now.inbound.key, said.model, owner=now.inbound.owner)
        if reply is not None:
            document = said.document
            files = (File(document.file_name, document.text.encode()),) if document is not None else ()
            self._delivery.put(reply, tuple(Button(offer.label, offer.command) for offer in said.offers), files)
        if (hear := self._hearing.get(now.id)) is not None:
            hear(Answered(said))
        await self._tell_of_set_aside()
        if said.wakes:
            self.wake(now.inbound.key)
        if said.posts:
            await self._delivery.sweep()

    async def _said(self, row: InboxRow) -> Said:
        if row.state is InboxState.RUNNING:
            return Said(BEGUN_BEFORE)
        found = parse(row.inbound.text)
        if not isinstance(found, Order):
            return Said(found.answer if found is not None else "", ok=False)
        if found.command.private and row.inbound.key.chat_type is not ChatType.DM and not is_shared(row.inbound.key):
            return Said(NOT_HERE, ok=False)
        model = await self._bench.store.peek(lambda uow: uow.sessions.chosen_model(row.inbound.key))
        try:
            said = await carry_out(self._bench.desk(row, model), found)
        except DoneBefore:
            return Said(BEGUN_BEFORE)
        except StoreError:
            raise
        except Exception:
            log.exception("/%s failed", found.command.name, extra=at(row.inbound.key))
            return Said(WENT_WRONG, ok=False)
        return Said(NO_LEAVING) if said.quits else said

    async def _tell_of_set_aside(self) -> None:
        """Whoever waits for an answer that will not come is told."""
        if not self._hearing:
            return
        heard = tuple(self._hearing)
        # Not on the loop: many may be waiting, for each of whom a row is read.
        rows = await self._bench.store.read(lambda uow: [uow.inbox.get(inbox_id) for inbox_id in heard])
        for row in rows:
            if (
                row is not None
                and row.state is InboxState.SET_ASIDE
                and (hear := self._hearing.get(row.id)) is not None
            ):
                hear(SetAside(row.session_id or ""))


class _Listener:
    """Passes on what happens in one turn: to what is shown of it, and to whoever waits for it."""

    def __init__(
        self, place: _Place, showing: Showing | None, hearing: Mapping[int, Hear], hold: Callable[[str], None]
    ) -> None:
        self._place = place
        self._hold = hold
        self.turn_id = ""
        self._showing = showing
        self._hearing = hearing
        self._concerned: list[Hear] = []
        self.ended: TurnEnded | None = None

    def hear(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._place.at = event.ref
                self._also(event.ticket.message.id)
                for row in event.ticket.steered:
                    self._also(row.id)
                if self._showing is not None:
                    self.turn_id = event.ticket.turn_id
                    self._hold(self.turn_id)
                    self._showing.begin(event.ticket)
            case Steered():
                self._also(event.inbox_id)
            case TurnEnded():
                self.ended = event
            case _:
                pass
        if self._showing is not None:
            self._showing.hear(event)
        for hear in self._concerned:
            hear(event)

    def _also(self, inbox_id: int) -> None:
        if (hear := self._hearing.get(inbox_id)) is not None:
            self._concerned.append(hear)


def _skips_queue(row: InboxRow) -> bool:
    found = parse(row.inbound.text)
    return not isinstance(found, Order) or found.command.skips_queue
