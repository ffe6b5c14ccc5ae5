"""The outbox: each chat's replies go out in order, each once where the platform allows that.

A part is marked before it is handed over and after it is out. If nobody knows whether it went out, the platform is
asked (see `finding`). Where it can't be asked, the part is marked as such, an incident tells of it, and it is not sent
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from msgspec.structs import replace

from everthread.domain.backoff import Backoff
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain, StoreError
from everthread.domain.model import Reply, ReplyState
from everthread.gateway import outbox_rows as outgoing
from everthread.gateway.delivery_check import Finding, Settling
from everthread.gateway.message_split import parts_of
from everthread.gateway.outbox_rows import Ledger
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Button, File, Outbound, Platform
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.gateway")

BACKOFF = Backoff(first_s=1.0, max_s=60.0)
STORE_RETRY_S = 2.0
SWEPT_MAX = 1000
AS_TEXT_BYTES_MAX = 400_000
"""Of a file that is said as text: more would be hundreds of messages."""
HANDED_OVER_MAX = 4
HAND_OVER_S_MAX = 0.25
STOPPED_S = 0.3
SEND_S_MAX = 120.0
"""Of what a platform has not said anything by then, nobody can say whether it went out."""

QUESTION = "ask-"
"""How the name of a reply begins that is of use only while the process which has asked waits for an answer."""

Lane = tuple[str, str]


class Outbox:
    """Sends what is ready. Its queues are only a shortcut: what is to be sent stands in the store."""

    def __init__(
        self, store: Store, clock: Clock, platforms: Mapping[str, Platform], random: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._platforms = platforms
        self._random = random
        self._lanes: dict[Lane, deque[str]] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._held: set[str] = set()
        self._swept: tuple[float, str] | None = None
        self._with: dict[str, tuple[tuple[Button, ...], tuple[File, ...]]] = {}
        self.finding = Finding(store, clock)
        self._ledger = Ledger(store, clock)
        self._settling = Settling(self.finding, self._ledger, clock)
        # What is marked as handed over and not out yet is uncertain if the process dies: let that be few at a time.
        self._handing_over = {name: asyncio.Semaphore(HANDED_OVER_MAX) for name in platforms}

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._lanes.values())

    def put(self, reply: Reply, buttons: tuple[Button, ...] = (), files: tuple[File, ...] = ()) -> None:
        """Have a reply sent that is stored. Buttons and files are extras: after a crash it goes out without them."""
        if reply.state is not ReplyState.READY or reply.key.platform not in self._platforms:
            return
        if buttons or files:
            self._with[reply.turn_id] = buttons, files
        self._queue(reply)

    def _queue(self, reply: Reply) -> None:
        lane = (reply.key.platform, reply.key.chat)
        queue = self._lanes.setdefault(lane, deque())
        if reply.turn_id in queue:
            return
        queue.append(reply.turn_id)
        if lane not in self._tasks:
            self._tasks[lane] = asyncio.ensure_future(self._drain(lane))

    def hold(self, turn_id: str) -> None:
        """Until it is released, leave a turn's reply alone: a beginning of it may be on its way."""
        self._held.add(turn_id)

    def release(self, turn_id: str) -> None:
        """What there is of it is sent when it is put here, or by the next sweep."""
        self._held.discard(turn_id)

    async def begin(self) -> None:
        """Take up what a process that is gone has left: whether a part that it had handed over is out, is not known."""
        await self.finding.remind(self._platforms)
        async for reply in self._all(ReplyState.SENDING):
            platform = self._platforms.get(reply.key.platform)
            if platform is None:
                continue
            if reply.turn_id.startswith(QUESTION):
                await self._ledger.mark(replace(reply, state=ReplyState.WITHHELD))
            elif platform.capabilities.idempotent_send or outgoing.is_edit(reply):
                await self._ledger.mark(replace(reply, state=ReplyState.READY))
            elif platform.finder is not None:
                self._settling.open(reply.turn_id)
                self._queue(reply)
            else:
                await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, "the program ended while it was being sent")
        async for reply in self._all(ReplyState.READY):
            if reply.turn_id.startswith(QUESTION):
                # The turn that has asked goes on, and asks anew.
                await self._ledger.mark(replace(reply, state=ReplyState.WITHHELD))
            else:
                self.put(reply)

    async def sweep(self) -> None:
        """Take up what is ready and in no queue here: some of it each time, from where the last sweep has ended."""
        found, self._swept = await self._some(ReplyState.READY, self._swept)
        for reply in found:
            if reply.turn_id not in self._held:
                self.put(reply)

    async def _all(self, state: ReplyState) -> AsyncIterator[Reply]:
        after: tuple[float, str] | None = None
        while True:
            found, after = await self._some(state, after)
            for reply in found:
                yield reply
            if after is None:
                return

    async def _some(
        self, state: ReplyState, after: tuple[float, str] | None
    ) -> tuple[tuple[Reply, ...], tuple[float, str] | None]:
        """The next ones, and behind which one there may be more."""
        found = await self._store.read(lambda uow: uow.outbox.replies(state, SWEPT_MAX, after))
        return found, (found[-1].at, found[-1].turn_id) if len(found) == SWEPT_MAX else None

    async def finish(self, deadline: float) -> None:
        """Let what is queued go out until then, by the loop's clock; what has not is left to the next process."""
        while self._tasks and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _drain(self, lane: Lane) -> None:
        queue = self._lanes[lane]
        try:
            while queue:
                try:
                    await self._deliver(self._platforms[lane[0]], queue[0])
                except Exception:
                    # A mistake of ours or of a platform's client: it stays in the store, and holds nobody up.
                    log.exception("a reply was not sent", extra={"platform": lane[0], "turn_id": queue[0]})
                self._with.pop(queue.popleft(), None)
        finally:
            del self._tasks[lane], self._lanes[lane]

    async def _deliver(self, platform: Platform, turn_id: str) -> None:
        """See one reply through, however long that takes."""
        tries = 0
        while True:
            try:
                if await self._try(platform, turn_id):
                    return
                tries = 0
            except PlatformUnavailable as error:
                tries += 1
                pause_s = max(error.retry_after, BACKOFF.jittered_s(tries, self._random()))
                where = {"platform": platform.name, "turn_id": turn_id}
                log.info("%s: %s; tried again in %.1f s", platform.name, error, pause_s, extra=where)
                await self._clock.sleep(pause_s)
            except StoreError as error:
                log.warning("a reply waits: %s", error, extra={"platform": platform.name, "turn_id": turn_id})
                await self._clock.sleep(STORE_RETRY_S)

    async def _try(self, platform: Platform, turn_id: str) -> bool:
        """Send the next part; whether that was the last of it."""
        if platform.capabilities.idempotent_send:
            reply = await self._store.read_inline(lambda uow: outgoing.ready(uow, turn_id))
            return reply is None or await self._send_part(platform, reply)
        if self._settling.is_open(turn_id):
            return await self._settle(platform, turn_id)
        async with self._handing_over[platform.name]:
            reply = await self._store.write(lambda uow: outgoing.claimed(uow, turn_id, platform.finder))
            if reply is None:
                return True
            if platform.finder is not None and outgoing.may_have_begun(reply):
                self._settling.open(turn_id)
                return False
            sending = asyncio.ensure_future(self._send_part(platform, reply))
            try:
                # Not for long: a chat where sending takes its time must not hold up the others.
                await asyncio.wait({sending}, timeout=HAND_OVER_S_MAX)
            except asyncio.CancelledError:
                sending.cancel()
                await asyncio.wait({sending})
                raise
        return await sending

    async def _settle(self, platform: Platform, turn_id: str) -> bool:
        """Find out what became of a part that was handed over, and see to it; whether that was the last of it."""
        reply = await self._store.read_inline(lambda uow: uow.outbox.reply(turn_id))
        if reply is None or reply.state is not ReplyState.SENDING:
            self._settling.leave(turn_id)
            return True
        try:
            next_part = await self._next_part(platform, reply)
            settled = await self._settling.settle(platform, reply, *next_part) if next_part is not None else None
        except (PlatformUnavailable, StoreError):
            raise
        except Exception:
            # Nobody else would take it up before the next process does.
            log.exception("a reply was not looked for", extra=log_fields(reply.key, reply.session_id, turn_id))
            await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, "something went wrong while it was looked for")
            settled = True
        self._settling.leave(turn_id)
        return await self._send_part(platform, reply, again=True) if settled is None else settled

    async def _send_part(self, platform: Platform, reply: Reply, *, again: bool = False) -> bool:
        """`again` if it was handed over before, and is not there."""
        safe = platform.capabilities.idempotent_send
        next_part = await self._next_part(platform, reply)
        if next_part is None:
            await self._ledger.give_up(
                reply, ReplyState.FAILED, f"no files can be sent there, and {reply.file} is no text, or too long a one"
            )
            return True
        message, last = next_part
        sent = asyncio.ensure_future(self._send(platform, reply, message))
        try:
            message_id = await asyncio.shield(sent)
        except asyncio.CancelledError:
            await self._stopped(sent, reply, safe, last)
            raise
        except SendUncertain as error:
            return await self._uncertain(platform, reply, error)
        except PlatformRefused as error:
            await self._ledger.give_up(reply, ReplyState.FAILED, str(error))
            return True
        except PlatformUnavailable:
            if not safe:
                await self._ledger.mark(replace(reply, state=ReplyState.READY))
            raise
        except Exception:
            if safe:
                raise
            log.exception(
                "a reply may not have been sent", extra=log_fields(reply.key, reply.session_id, reply.turn_id)
            )
            await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, "something went wrong while it was being sent")
            return True
        message_id = await self._only_one(platform, reply, message, message_id, again)
        await self._ledger.mark(outgoing.sent(reply, message_id, last))
        return last

    async def _uncertain(self, platform: Platform, reply: Reply, error: SendUncertain) -> bool:
        """A part may be out. Where it is safe to send it again, or to ask, that is done."""
        if platform.capabilities.idempotent_send:
            raise PlatformUnavailable(str(error)) from error
        if platform.finder is None:
            await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, str(error))
            return True
        self._settling.open(reply.turn_id)
        return False

    async def _send(self, platform: Platform, reply: Reply, message: Outbound) -> str:
        try:
            async with asyncio.timeout(SEND_S_MAX):
                return await self._send_or_edit(platform, reply, message)
        except TimeoutError as error:
            nothing_heard = f"nothing was heard for {SEND_S_MAX:g} s"
            raise (PlatformUnavailable if outgoing.is_edit(reply) else SendUncertain)(nothing_heard) from error

    async def _next_part(self, platform: Platform, reply: Reply) -> tuple[Outbound, bool] | None:
        """And whether it is the last. `None` if nobody could read it."""
        text = await self._text(platform, reply)
        if text is None:
            return None
        parts = parts_of(text, platform.capabilities)
        last = reply.parts + 1 >= len(parts)
        buttons, files = self._with.get(reply.turn_id, ((), ())) if last else ((), ())
        if last and reply.file and platform.capabilities.files:
            content = await self._store.read(lambda uow: uow.outbox.attached(reply.turn_id))
            files = (*files, File(reply.file, content or b""))
        name = f"{reply.turn_id}.{reply.parts}"
        return Outbound(name, Address.of(reply.key), parts[reply.parts], buttons, files), last

    async def _send_or_edit(self, platform: Platform, reply: Reply, message: Outbound) -> str:
        to, text, buttons = message.to, message.text, message.buttons
        if outgoing.is_edit(reply) and (known := reply.platform_message_id):
            try:
                await platform.edit(to, known, text, buttons)
                return known
            except SendUncertain as error:
                # Doing it twice is doing it once.
                raise PlatformUnavailable(str(error)) from error
            except PlatformRefused as error:
                # The message is gone, or too old to be changed: they are to read the answer all the same.
                log.info(
                    "%s: %s; sent anew",
                    platform.name,
                    error,
                    extra=log_fields(reply.key, reply.session_id, reply.turn_id),
                )
                return await platform.send(replace(message, id=f"{message.id}.anew"))
        message_id = await platform.send(message)
        if reply.parts == 0 and reply.platform_message_id is not None and platform.capabilities.idempotent_send:
            # If a beginning of it was out, nothing more went out under its id.
            await platform.edit(to, message_id, text, buttons)
        return message_id

    async def _text(self, platform: Platform, reply: Reply) -> str | None:
        """What is said; where no files can be sent, what is in its file as well. `None` if nobody could read that."""
        if not reply.file or platform.capabilities.files:
            return reply.text
        content = await self._store.read(lambda uow: uow.outbox.attached(reply.turn_id))
        if content is not None and len(content) > AS_TEXT_BYTES_MAX:
            return None
        try:
            return "\n\n".join(part for part in (reply.text, (content or b"").decode()) if part)
        except UnicodeDecodeError:
            return None

    async def _stopped(self, sent: asyncio.Future[str], reply: Reply, safe: bool, last: bool) -> None:
        """The process ends: if the part goes out in the next moment, that is written down."""
        done, _ = await asyncio.wait({sent}, timeout=STOPPED_S)
        if not done:
            sent.cancel()
        elif not sent.cancelled() and sent.exception() is None:
            await self._ledger.mark_or_leave(outgoing.sent(reply, sent.result(), last))
        elif not safe and isinstance(sent.exception(), PlatformUnavailable):
            await self._ledger.mark_or_leave(replace(reply, state=ReplyState.READY))

    async def _only_one(self, platform: Platform, reply: Reply, message: Outbound, message_id: str, again: bool) -> str:
        """The id of a part that is out, once what else may be out of it is seen to."""
        if again and platform.finder is not None:
            return await self._settling.only_one(platform, platform.finder, reply, message, message_id)
        if outgoing.may_have_begun(reply) and not platform.capabilities.idempotent_send:
            # Nobody was told under which id the beginning is: nobody can take it away.
            await self._ledger.tell(
                reply, f"the beginning of a reply may stand beside it in {reply.key.platform} chat {reply.key.chat}"
            )
        return message_id
