"""The outbox: send each chat's replies in order, and each once where the platform allows that.

A part is marked in the store before and after it is sent. If the result is unknown, the platform is asked (see
`delivery_check`). Where it cannot be asked, the part is marked as ambiguous with an incident, and not sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from msgspec.structs import replace

from everthread.concurrency import finish_tasks
from everthread.domain.backoff import Backoff
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain, StoreError
from everthread.domain.model import Reply, ReplyState
from everthread.gateway import outbox_rows as rows
from everthread.gateway.delivery_check import DeliveryCheck, UncertainReplies
from everthread.gateway.message_split import split_for
from everthread.gateway.outbox_rows import ReplyWriter
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Button, File, Outbound, Platform
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.gateway")

BACKOFF = Backoff(first_s=1.0, max_s=60.0)
STORE_RETRY_S = 2.0
SWEPT_MAX = 1000
AS_TEXT_BYTES_MAX = 400_000
"""Size of a file that is sent as text: a larger one would become hundreds of messages."""
SENDING_MAX = 4
SENDING_S_MAX = 0.25
CANCELLED_S = 0.3
SEND_S_MAX = 120.0
"""The result of a send without an answer by then counts as unknown."""

QUESTION = "ask-"
"""Prefix of the ids of approval questions, which are useless once the process that asks has died."""

Lane = tuple[str, str]


class Outbox:
    """Sends the replies that are ready. Its queues are a cache of the store."""

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
        self._extras: dict[str, tuple[tuple[Button, ...], tuple[File, ...]]] = {}
        self.delivery_check = DeliveryCheck(store, clock)
        self._writer = ReplyWriter(store, clock)
        self._uncertain = UncertainReplies(self.delivery_check, self._writer, clock)
        # A reply that is being sent when the process dies is uncertain: limit their number.
        self._sending = {name: asyncio.Semaphore(SENDING_MAX) for name in platforms}

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._lanes.values())

    def serves(self, platform: str) -> bool:
        return platform in self._platforms

    def put(self, reply: Reply, buttons: tuple[Button, ...] = (), files: tuple[File, ...] = ()) -> None:
        """Send a stored reply. Buttons and files are kept in memory only: after a crash it is sent without them."""
        if reply.state is not ReplyState.READY or reply.key.platform not in self._platforms:
            return
        if buttons or files:
            self._extras[reply.turn_id] = buttons, files
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
        """Do not send a turn's reply until `release`: its live reply may be in transit."""
        self._held.add(turn_id)

    def release(self, turn_id: str) -> None:
        """Let `put` or the next sweep send a turn's reply again."""
        self._held.discard(turn_id)

    async def begin(self) -> None:
        """Queue the replies that a dead process left. The result of those it was sending is unknown."""
        await self.delivery_check.load_known(self._platforms)
        async for reply in self._read_all(ReplyState.SENDING):
            platform = self._platforms.get(reply.key.platform)
            if platform is None:
                continue
            if reply.turn_id.startswith(QUESTION):
                await self._writer.save(replace(reply, state=ReplyState.WITHHELD))
            elif platform.capabilities.idempotent_send or rows.is_edit(reply):
                await self._writer.save(replace(reply, state=ReplyState.READY))
            elif platform.finder is not None:
                self._uncertain.add(reply.turn_id)
                self._queue(reply)
            else:
                await self._writer.give_up(reply, ReplyState.AMBIGUOUS, "the process ended while it was being sent")
        async for reply in self._read_all(ReplyState.READY):
            if reply.turn_id.startswith(QUESTION):
                # The turn that asked is resumed, and asks again.
                await self._writer.save(replace(reply, state=ReplyState.WITHHELD))
            else:
                self.put(reply)

    async def sweep(self) -> None:
        """Queue ready replies that no queue has: a page each time, from the end of the last sweep."""
        found, self._swept = await self._read_some(ReplyState.READY, self._swept)
        for reply in found:
            if reply.turn_id not in self._held:
                self.put(reply)

    async def _read_all(self, state: ReplyState) -> AsyncIterator[Reply]:
        after: tuple[float, str] | None = None
        while True:
            found, after = await self._read_some(state, after)
            for reply in found:
                yield reply
            if after is None:
                return

    async def _read_some(
        self, state: ReplyState, after: tuple[float, str] | None
    ) -> tuple[tuple[Reply, ...], tuple[float, str] | None]:
        """Read a page of replies, and the mark of the next page; `None` if it is the last."""
        found = await self._store.read(lambda uow: uow.outbox.replies(state, SWEPT_MAX, after))
        return found, (found[-1].at, found[-1].turn_id) if len(found) == SWEPT_MAX else None

    async def finish(self, deadline: float) -> None:
        """Send queued replies until `deadline`, by the loop's clock. The next process sends the rest."""
        await finish_tasks(self._tasks.values, deadline)

    async def _drain(self, lane: Lane) -> None:
        queue = self._lanes[lane]
        try:
            while queue:
                try:
                    await self._deliver(self._platforms[lane[0]], queue[0])
                except Exception:
                    # A bug of ours or of a platform's client: the reply stays in the store, and blocks no other.
                    log.exception("could not send a reply", extra={"platform": lane[0], "turn_id": queue[0]})
                self._extras.pop(queue.popleft(), None)
        finally:
            del self._tasks[lane], self._lanes[lane]

    async def _deliver(self, platform: Platform, turn_id: str) -> None:
        """Send one reply, with retries until it is done."""
        tries, fields = 0, {"platform": platform.name, "turn_id": turn_id}
        while True:
            try:
                if await self._try(platform, turn_id):
                    return
                tries = 0
            except PlatformUnavailable as error:
                tries += 1
                pause_s = max(error.retry_after, BACKOFF.jittered_s(tries, self._random()))
                log.info("%s: %s; retrying in %.1f s", platform.name, error, pause_s, extra=fields)
                await self._clock.sleep(pause_s)
            except StoreError as error:
                log.warning("could not read or store a reply; retrying: %s", error, extra=fields)
                await self._clock.sleep(STORE_RETRY_S)

    async def _try(self, platform: Platform, turn_id: str) -> bool:
        """Send the next part; return true if it was the last."""
        if platform.capabilities.idempotent_send:
            reply = await self._store.read_inline(lambda uow: rows.read_ready(uow, turn_id))
            return reply is None or await self._send_part(platform, reply)
        if turn_id in self._uncertain:
            return await self._resolve(platform, turn_id)
        async with self._sending[platform.name]:
            reply = await self._store.write(lambda uow: rows.claim(uow, turn_id, platform.finder))
            if reply is None:
                return True
            if platform.finder is not None and rows.may_have_begun(reply):
                self._uncertain.add(turn_id)
                return False
            sending = asyncio.ensure_future(self._send_part(platform, reply))
            try:
                # Release the semaphore soon: a slow chat must not block the others.
                await asyncio.wait({sending}, timeout=SENDING_S_MAX)
            except asyncio.CancelledError:
                sending.cancel()
                await asyncio.wait({sending})
                raise
        return await sending

    async def _resolve(self, platform: Platform, turn_id: str) -> bool:
        """Find out whether a part was delivered, and send it again if not; return true if it was the last."""
        reply = await self._store.read_inline(lambda uow: uow.outbox.reply(turn_id))
        if reply is None or reply.state is not ReplyState.SENDING:
            self._uncertain.discard(turn_id)
            return True
        try:
            next_part = await self._next_part(platform, reply)
            is_done = await self._uncertain.resolve(platform, reply, *next_part) if next_part is not None else None
        except (PlatformUnavailable, StoreError):
            raise
        except Exception:
            # Otherwise nothing would send it before the next start.
            log.exception("could not check a reply", extra=rows.reply_fields(reply))
            why = "an error occurred while the chat was searched for it"
            await self._writer.give_up(reply, ReplyState.AMBIGUOUS, why)
            is_done = True
        self._uncertain.discard(turn_id)
        return await self._send_part(platform, reply, again=True) if is_done is None else is_done

    async def _send_part(self, platform: Platform, reply: Reply, *, again: bool = False) -> bool:
        """Send one part; return true if it was the last. `again`: it was sent before, and not found."""
        safe = platform.capabilities.idempotent_send
        next_part = await self._next_part(platform, reply)
        if next_part is None:
            why = f"no files can be sent there, and {reply.file} is not text, or too long"
            await self._writer.give_up(reply, ReplyState.FAILED, why)
            return True
        message, last = next_part
        sent = asyncio.ensure_future(self._send(platform, reply, message))
        try:
            message_id = await asyncio.shield(sent)
        except asyncio.CancelledError:
            await self._cancelled(sent, reply, safe, last)
            raise
        except SendUncertain as error:
            return await self._handle_uncertain(platform, reply, error)
        except PlatformRefused as error:
            await self._writer.give_up(reply, ReplyState.FAILED, str(error))
            return True
        except PlatformUnavailable:
            if not safe:
                await self._writer.save(replace(reply, state=ReplyState.READY))
            raise
        except Exception:
            if safe:
                raise
            log.exception("a reply may not have been sent", extra=rows.reply_fields(reply))
            await self._writer.give_up(reply, ReplyState.AMBIGUOUS, "an error occurred while it was being sent")
            return True
        message_id = await self._remove_duplicate(platform, reply, message, message_id, again)
        await self._writer.save(rows.with_part_sent(reply, message_id, last))
        return last

    async def _handle_uncertain(self, platform: Platform, reply: Reply, error: SendUncertain) -> bool:
        """Handle a send with an unknown result: send again or ask, where the platform allows it."""
        if platform.capabilities.idempotent_send:
            raise PlatformUnavailable(str(error)) from error
        if platform.finder is None:
            await self._writer.give_up(reply, ReplyState.AMBIGUOUS, str(error))
            return True
        self._uncertain.add(reply.turn_id)
        return False

    async def _send(self, platform: Platform, reply: Reply, message: Outbound) -> str:
        try:
            async with asyncio.timeout(SEND_S_MAX):
                return await self._send_or_edit(platform, reply, message)
        except TimeoutError as error:
            timed_out = f"no answer within {SEND_S_MAX:g} s"
            raise (PlatformUnavailable if rows.is_edit(reply) else SendUncertain)(timed_out) from error

    async def _next_part(self, platform: Platform, reply: Reply) -> tuple[Outbound, bool] | None:
        """Build the next part, with true if it is the last. `None` if it cannot be sent as text."""
        text = await self._text(platform, reply)
        if text is None:
            return None
        parts = split_for(text, platform.capabilities)
        last = reply.parts + 1 >= len(parts)
        buttons, files = self._extras.get(reply.turn_id, ((), ())) if last else ((), ())
        if last and reply.file and platform.capabilities.files:
            content = await self._store.read(lambda uow: uow.outbox.attachment(reply.turn_id))
            files = (*files, File(reply.file, content or b""))
        name = f"{reply.turn_id}.{reply.parts}"
        return Outbound(name, Address.of(reply.key), parts[reply.parts], buttons, files), last

    async def _send_or_edit(self, platform: Platform, reply: Reply, message: Outbound) -> str:
        to, text, buttons = message.to, message.text, message.buttons
        if rows.is_edit(reply) and (known := reply.platform_message_id):
            try:
                await platform.edit(to, known, text, buttons)
                return known
            except SendUncertain as error:
                # An edit is idempotent.
                raise PlatformUnavailable(str(error)) from error
            except PlatformRefused as error:
                # The message was deleted, or is too old to edit: send the answer as a new one.
                log.info("%s: %s; sending a new message", platform.name, error, extra=rows.reply_fields(reply))
                return await platform.send(replace(message, id=f"{message.id}.anew"))
        message_id = await platform.send(message)
        if reply.parts == 0 and reply.platform_message_id is not None and platform.capabilities.idempotent_send:
            # If a beginning was delivered under this id, the platform ignored the new text.
            await platform.edit(to, message_id, text, buttons)
        return message_id

    async def _text(self, platform: Platform, reply: Reply) -> str | None:
        """Return the text, with the file's content where no files can be sent. `None` if that is no text."""
        if not reply.file or platform.capabilities.files:
            return reply.text
        content = await self._store.read(lambda uow: uow.outbox.attachment(reply.turn_id))
        if content is not None and len(content) > AS_TEXT_BYTES_MAX:
            return None
        try:
            return "\n\n".join(part for part in (reply.text, (content or b"").decode()) if part)
        except UnicodeDecodeError:
            return None

    async def _cancelled(self, sent: asyncio.Future[str], reply: Reply, safe: bool, last: bool) -> None:
        """The process stops: store the result if it arrives within a moment."""
        done, _ = await asyncio.wait({sent}, timeout=CANCELLED_S)
        if not done:
            sent.cancel()
        elif not sent.cancelled() and sent.exception() is None:
            await self._writer.try_save(rows.with_part_sent(reply, sent.result(), last))
        elif not safe and isinstance(sent.exception(), PlatformUnavailable):
            await self._writer.try_save(replace(reply, state=ReplyState.READY))

    async def _remove_duplicate(
        self, platform: Platform, reply: Reply, message: Outbound, message_id: str, again: bool
    ) -> str:
        """Return the id of a sent part after removing duplicates of it."""
        if again and platform.finder is not None:
            return await self._uncertain.remove_duplicate(platform, platform.finder, reply, message, message_id)
        if rows.may_have_begun(reply) and not platform.capabilities.idempotent_send:
            # The id of the beginning is unknown, so it cannot be removed.
            text = f"the beginning of a reply may be a message of its own in {rows.chat_of(reply)}"
            await self._writer.report(reply, text)
        return message_id
