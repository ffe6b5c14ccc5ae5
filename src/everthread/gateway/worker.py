"""Serve the inbox of every session key: answer its messages one after another, and run its commands in their place.

Each busy key is a lane with a task of its own. All state can be read again from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from everthread.agent.events import TurnEnded
from everthread.agent.inbox_worker import InboxWorker
from everthread.agent.turn_options import TurnOptions
from everthread.commands.context import CommandResult, sentence
from everthread.commands.registry import ParsedCommand, parse
from everthread.concurrency import finish_tasks, wait_until_done
from everthread.domain.errors import BadConfig, Busy, QuotaReached, StoreError
from everthread.domain.model import InboxRow, SessionKey, SessionRef, TurnStatus
from everthread.gateway.approvals import Approvals
from everthread.gateway.attachments import AttachmentQueue
from everthread.gateway.command_runner import BuildContext, CommandRunner, GatewayRuntime, skips_queue
from everthread.gateway.outbox import Outbox
from everthread.gateway.streaming import LiveReply
from everthread.gateway.turn_events import CommandAnswered, Subscriber, TurnEventRelay
from everthread.lifecycle import TurnClaim
from everthread.log_context import enter_log_scope, log_fields, log_scope

log = logging.getLogger("everthread.gateway")

BUSY_S_MAX = 5.0
STOPPED_FIRST = "stopped before it was begun"
STORE_PAUSE_S = 2.0
CANCEL_S = 0.5
NO_MODEL = "I can't answer now: no model is set up for me. Your message is kept."

_UNSEEN = (TurnStatus.LATE, TurnStatus.HIDDEN)


class _Lane:
    """The inbox of one key while it is served."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.task: asyncio.Future[None] | None = None
        self.owner = ""
        """The owner of the last message; empty until one was read."""
        self.woken = False
        self.commands: deque[InboxRow] = deque()
        """Commands that skip the queue, in order."""
        self.command_task: asyncio.Future[None] | None = None
        self.running_commands: set[int] = set()
        self.cut_off: deque[str] = deque()
        """Turns that a dead process had begun."""
        self.turn_ref: SessionRef | None = None
        """The session of the running turn."""
        self.user = ""
        """The user whose message the running turn answers."""
        self.to_steer: list[int] = []
        """Messages in steer mode that no turn has taken up yet."""
        self.is_beginning = False
        """A turn was requested, and has not announced itself yet."""
        self.stop_before: int | None = None
        """Stop the next turn if its message arrived before this inbox id."""

    @property
    def log_fields(self) -> dict[str, str]:
        return log_fields(self.key, owner=self.owner)

    def begin(self, claim: TurnClaim) -> bool:
        """Note that a turn has begun; return true if it must be stopped."""
        self.turn_ref, self.user = claim.ref, claim.message.inbound.user
        self.is_beginning, stop_before, self.stop_before = False, self.stop_before, None
        return stop_before is not None and claim.message.id < stop_before


class Worker:
    """Owns the lanes of all busy keys."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        outbox: Outbox,
        attachments: AttachmentQueue,
        approvals: Approvals,
        *,
        live_reply: Callable[[str], LiveReply | None],
        build_context: BuildContext,
    ) -> None:
        """`live_reply` makes the reply that is edited while it is written; `None` where nothing is sent."""
        self._runtime = runtime
        self._store, self._agent = runtime.store, runtime.agent
        self._outbox = outbox
        self._attachments = attachments
        self._approvals = approvals
        self._live_reply = live_reply
        self._inbox = InboxWorker(runtime.store, runtime.lifecycle, runtime.clock)
        self._lanes: dict[SessionKey, _Lane] = {}
        self.subscribers: dict[int, Subscriber] = {}
        """Listeners of turns, by the inbox id of the message."""
        self._commands = CommandRunner(runtime, outbox, self.subscribers, build_context)
        self._stopping = False
        self.answered = 0

    @property
    def busy(self) -> int:
        """The number of keys that are being served."""
        return len(self._lanes)

    @property
    def running(self) -> int:
        """The number of running turns."""
        return sum(1 for lane in self._lanes.values() if lane.turn_ref is not None)

    def subscribe(self, inbox_id: int, subscriber: Subscriber) -> None:
        """Send the events of a message to `subscriber` until `unsubscribe`. Call it before `submit`."""
        self.subscribers[inbox_id] = subscriber

    def unsubscribe(self, inbox_id: int) -> None:
        self.subscribers.pop(inbox_id, None)

    def submit(self, row: InboxRow, busy_mode: str) -> None:
        """Serve a stored message or command. `busy_mode` says what a message does to a running turn."""
        lane = self._lane(row.inbound.key)
        if row.inbound.command and skips_queue(row):
            self._run_now(lane, row)
        elif not row.inbound.command and busy_mode == "steer":
            lane.to_steer.append(row.id)
            self._attachments.enqueue(row, lambda: self._steer(lane))
            self._steer(lane)
        elif not row.inbound.command and busy_mode == "interrupt" and lane.turn_ref is not None:
            self._agent.stop(lane.turn_ref.session_id, "interrupted by a newer message")
        self._attachments.enqueue(row)
        self._wake(lane)

    def _steer(self, lane: _Lane) -> None:
        """Steer the running turn by the messages that arrived, in order: none overtakes one with pending attachments.

        A message that no longer waits in the inbox steers nothing.
        """
        while lane.turn_ref is not None and lane.to_steer and not self._attachments.is_pending(lane.to_steer[0]):
            self._agent.steer(lane.turn_ref.session_id, lane.to_steer.pop(0))

    def wake(self, key: SessionKey) -> None:
        """Look at the key's inbox."""
        self._wake(self._lane(key))

    async def recover(self, is_served: Callable[[str], bool]) -> None:
        """Resume the turns, commands and messages that dead processes left on the served platforms."""
        known = {turn_id for lane in self._lanes.values() for turn_id in lane.cut_off}
        for slot in await self._inbox.find_cut_off(lambda ref: is_served(ref.key.platform), lambda _: True):
            if slot.turn_id not in known:
                lane = self._lane(slot.ref.key)
                lane.cut_off.append(slot.turn_id)
                self._wake(lane)
        for key in await self._store.read(lambda uow: uow.inbox.keys_waiting()):
            if not is_served(key.platform) or key in self._lanes:
                continue
            rows = await self._store.read_inline(lambda uow, key=key: uow.inbox.commands(key))
            lane = self._lane(key)
            for row in rows:
                if skips_queue(row):
                    self._run_now(lane, row)
            self._wake(lane)

    async def finish(self, deadline: float) -> None:
        """Begin nothing more and wait for the running work until `deadline`, by the loop's clock.

        The rest is released for another process.
        """
        self._stopping = True
        await self._attachments.finish()
        # Turns are released first. A task that takes longer waits for a platform to show the end of its reply.
        await finish_tasks(self._tasks, deadline, CANCEL_S)

    def _tasks(self) -> list[asyncio.Future[None]]:
        both = [task for lane in self._lanes.values() for task in (lane.task, lane.command_task)]
        return [task for task in both if task is not None and not task.done()]

    # --- Lanes -------------------------------------------------------------------------------------------------------

    def _lane(self, key: SessionKey) -> _Lane:
        return self._lanes.setdefault(key, _Lane(key))

    def _wake(self, lane: _Lane) -> None:
        lane.woken = True
        if lane.task is None and not self._stopping:
            lane.task = asyncio.ensure_future(self._serve(lane))
        elif self._stopping:
            self._drop_if_idle(lane)

    def _drop_if_idle(self, lane: _Lane) -> None:
        if lane.task is None and lane.command_task is None:
            self._lanes.pop(lane.key, None)

    async def _serve(self, lane: _Lane) -> None:
        try:
            while not self._stopping:
                lane.woken = False
                try:
                    with log_scope(**lane.log_fields):
                        more = await self._next(lane)
                except StoreError as error:
                    log.warning("cannot serve %s; retrying: %s", lane.key, error, extra=lane.log_fields)
                    await self._runtime.clock.sleep(STORE_PAUSE_S)
                    continue
                if not more and not lane.woken:
                    break
        except Exception:
            # A bug. The next message or the next sweep looks at the inbox again.
            log.exception("serving %s failed", lane.key, extra=lane.log_fields)
        finally:
            lane.task = None
            self._drop_if_idle(lane)

    async def _next(self, lane: _Lane) -> bool:
        """Do the next piece of work; return false if there is none."""
        if lane.cut_off:
            await self._answer(lane, lane.cut_off[0])
            lane.cut_off.popleft()
            return True
        row = await self._store.read_inline(lambda uow: uow.inbox.next(lane.key))
        if row is None:
            return False
        lane.owner = row.inbound.owner
        enter_log_scope(**lane.log_fields)
        if row.inbound.command:
            await self._run_next(lane, row)
            return True
        if row.inbound.has_pending_media:
            await self._attachments.wait(row)
            return True
        try:
            return await self._answer(lane)
        except QuotaReached as error:
            await self._refuse(lane, row, error)
            return True

    # --- Messages ----------------------------------------------------------------------------------------------------

    async def _answer(self, lane: _Lane, turn_id: str = "") -> bool:
        """Answer the next message, or resume the cut-off turn `turn_id`."""
        platform = lane.key.platform
        model = await self._runtime.rights.model_of_next_turn(lane.key, turn_id)
        try:
            choices = self._runtime.choices(model)
        except BadConfig as error:
            return await self._keep_unanswered(lane, turn_id, error)
        live_reply = self._live_reply(platform)
        relay = TurnEventRelay(partial(self._on_begun, lane), live_reply, self.subscribers, self._outbox.hold)
        options = TurnOptions(
            choices,
            relay.handle,
            self._approvals.of_turn(lambda: lane.user),
            outbox=self._outbox.serves(platform),
            is_guest=lambda owner: owner != self._runtime.settings.owner,
        )
        lane.is_beginning = True
        try:
            ended = await (self._agent.resume(turn_id, options) if turn_id else self._agent.answer(lane.key, options))
        except Busy:
            lane.is_beginning = False
            await self._wait_until_free(lane)
            return True
        finally:
            ref, lane.turn_ref, lane.is_beginning = lane.turn_ref, None, False
            if ref is not None:
                self._inbox.release(ref.session_id)
            if live_reply is not None:
                await self._end_live_reply(live_reply, relay)
        if ended is None:
            return True
        self.answered += 1
        if ended.committed.number == 1:
            # The notice that the session before it has expired goes out first.
            await self._outbox.sweep()
        if ended.committed.reply is not None:
            self._outbox.put(ended.committed.reply)
        return True

    async def _end_live_reply(self, live_reply: LiveReply, relay: TurnEventRelay) -> None:
        # A turn without an end was released: another process resumes it, in the same message.
        is_late = relay.ended is not None and relay.ended.committed.status in _UNSEEN
        # Not to be cancelled: until it is stored, only this task knows the id of the message on the platform.
        ending = asyncio.ensure_future(live_reply.end(withheld=is_late))
        cancelled = await wait_until_done(ending)
        self._outbox.release(relay.turn_id)
        ending.result()
        if cancelled is not None:
            raise cancelled

    def _on_begun(self, lane: _Lane, claim: TurnClaim) -> None:
        if lane.begin(claim):
            self._agent.stop(claim.ref.session_id, STOPPED_FIRST)

    async def stop_next(self, key: SessionKey, command_id: int) -> bool:
        """Stop the turn that is about to begin for a message before that command; return false if there is none."""
        lane = self._lane(key)
        if not lane.is_beginning:
            first = await self._store.read_inline(lambda uow: uow.inbox.first_waiting(key))
            if lane.turn_ref is not None or first is None or first.id > command_id:
                return False
        lane.stop_before = command_id
        self._wake(lane)
        return True

    async def _keep_unanswered(self, lane: _Lane, turn_id: str, error: BadConfig) -> bool:
        """Commit the message without an answer, and tell its sender: no model can be called."""
        reply = NO_MODEL if self._outbox.serves(lane.key.platform) else None
        try:
            kept = await self._inbox.keep_unanswered(lane.key, reply, turn_id=turn_id)
        except Busy:
            await self._wait_until_free(lane)
            return True
        if kept is None:
            return True
        claim, committed = kept
        fields = log_fields(lane.key, claim.ref.session_id, claim.turn_id, claim.ref.owner)
        log.error("no model can be called: %s", error, extra=fields)
        if committed.reply is not None:
            self._outbox.put(committed.reply)
        if (subscriber := self.subscribers.get(claim.message.id)) is not None:
            subscriber(TurnEnded(committed, "", str(error), error))
        return True

    async def _refuse(self, lane: _Lane, row: InboxRow, error: QuotaReached) -> None:
        """End a message without a turn and tell its sender: they may not open the session that it needs."""
        text = sentence(error)
        reply = await self._runtime.lifecycle.answer_command(
            row, text if self._outbox.serves(lane.key.platform) else None
        )
        if reply is not None:
            self._outbox.put(reply)
        if (subscriber := self.subscribers.get(row.id)) is not None:
            subscriber(CommandAnswered(CommandResult(text, ok=False)))

    async def _wait_until_free(self, lane: _Lane) -> None:
        await self._inbox.wait_until_free(lane.key, BUSY_S_MAX, lambda: lane.woken or self._stopping)

    # --- Commands ----------------------------------------------------------------------------------------------------

    def _run_now(self, lane: _Lane, row: InboxRow) -> None:
        if all(known.id != row.id for known in lane.commands):
            lane.commands.append(row)
        if lane.command_task is None:
            lane.command_task = asyncio.ensure_future(self._run_commands(lane))

    async def _run_commands(self, lane: _Lane) -> None:
        try:
            while lane.commands:
                try:
                    await self._run_earlier(lane, lane.commands[0])
                    await self._run(lane, lane.commands[0])
                    lane.commands.popleft()
                    continue
                except StoreError as error:
                    log.warning("a command at %s waits: %s", lane.key, error, extra=lane.log_fields)
                except Exception:
                    # A bug. The command stays in the inbox, and those behind it run first.
                    log.exception("a command at %s failed", lane.key, extra=lane.log_fields)
                    lane.commands.popleft()
                if self._stopping:
                    break
                await self._runtime.clock.sleep(STORE_PAUSE_S)
        finally:
            lane.command_task = None
            self._drop_if_idle(lane)

    async def _run_next(self, lane: _Lane, row: InboxRow) -> None:
        """Run the command at the head of the queue, or wait for the task that does."""
        if skips_queue(row):
            if lane.command_task is None:
                self._run_now(lane, row)
        elif row.id not in lane.running_commands or lane.command_task is None:
            await self._run(lane, row)
            return
        if lane.command_task is not None:
            await asyncio.wait({lane.command_task})

    async def _run_earlier(self, lane: _Lane, row: InboxRow) -> None:
        """Before a command that crosses a boundary, run those given before it: they belong to the session it leaves."""
        found = parse(row.inbound.text)
        if not isinstance(found, ParsedCommand) or not found.command.crosses_boundary:
            return
        for earlier in await self._store.read_inline(lambda uow: uow.inbox.commands(lane.key)):
            if earlier.id < row.id and earlier.id not in lane.running_commands and not skips_queue(earlier):
                await self._run(lane, earlier)

    async def _run(self, lane: _Lane, row: InboxRow) -> None:
        lane.running_commands.add(row.id)
        try:
            with log_scope(**log_fields(row.inbound.key, row.session_id or "", owner=row.inbound.owner)):
                woken = await self._commands.run(row)
            if woken:
                self.wake(row.inbound.key)
        finally:
            lane.running_commands.discard(row.id)
