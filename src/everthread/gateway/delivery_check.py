"""Ask the platform whether a part was delivered when sending it failed without an answer: no duplicates, no gaps.

The part is searched for after the newest message that was known before it was sent. A part that is found is edited to
its final text and not sent again. A part that is not found is searched for once more when nothing can be in transit any
longer; then it is sent again, and duplicates are searched for and removed. If the platform cannot tell, the part is
sent again with a line that says it may be a duplicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.backoff import Backoff
from everthread.domain.errors import PlatformError, PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.model import Reply, ReplyState
from everthread.gateway import outbox_rows as rows
from everthread.gateway.message_split import split_for
from everthread.gateway.outbox_rows import ReplyWriter
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Finder, Outbound, Platform
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.gateway")

IN_TRANSIT_S = 2.0
"""A platform delivers what it was sent within this time, or never."""
UNKNOWN_S = 15.0
"""Stop asking a platform that cannot tell after this time."""
POLL_S = 1.0
RECORDED_S = 86_400.0
"""Replies older than this, relative to the reply, cannot own the message that is searched for."""
KNOWN_MAX = 1000
RETRY_TIMES = 5
RETRY_S = 0.5
BACKOFF = Backoff(first_s=0.5, max_s=60.0)
RETRY_AFTER_S_MAX = 60.0
"""Longest time to obey `retry_after`; then the result counts as unknown."""
MAY_BE_TWICE = "(This message may arrive twice: the connection was lost while it was sent.)"

T = TypeVar("T")


class Delivered(Struct, frozen=True):
    """The part, or a beginning of it, was delivered."""

    message_id: str
    is_without_files: bool = False
    """Only the text was found; it is unknown whether its files were delivered."""


class NotDelivered(Struct, frozen=True):
    """The part was not delivered, and will not be."""


class DeliveryUnknown(Struct, frozen=True):
    why: str
    is_final: bool = False
    """Otherwise it may become known later: new messages narrow the search."""


DeliveryStatus = Delivered | NotDelivered | DeliveryUnknown


class DeliveryCheck:
    """Searches chats for messages that may have been delivered. It stores nothing but the range of the search."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def load_known(self, platforms: Mapping[str, Platform]) -> None:
        """Tell the finders the newest message ids that earlier processes stored."""
        finders = {name: platform.finder for name, platform in platforms.items()}
        if not any(finders.values()):
            return
        known = await self._store.read(lambda uow: uow.outbox.newest_sent(KNOWN_MAX))
        moved = await self._store.read(lambda uow: {(name, now) for (name, _), now in uow.inbox.moved_chats().items()})
        for key, message_id in known:
            finder = finders.get(key.platform)
            # A moved chat numbers its messages anew.
            if finder is not None and (key.platform, key.chat) not in moved:
                finder.know(Address.of(key), message_id)

    async def find(self, platform: Platform, message: Outbound, reply: Reply, ended_at: float) -> DeliveryStatus:
        """Search for a message and edit it to its final text. `ended_at`: when its sender gave up, by the loop's clock.

        Raise `PlatformUnavailable`.
        """
        finder = platform.finder
        assert finder is not None, "the platform has no finder"
        if not reply.sent_after:
            return DeliveryUnknown("no message of that chat was known before it was sent")
        began_at = asyncio.get_running_loop().time()
        while True:
            # Read before the search: a message that arrives during the search may be missed by it.
            passed_s, newest = asyncio.get_running_loop().time() - ended_at, finder.newest(message.to)
            status = await self.search(platform, finder, message, reply)
            if isinstance(status, DeliveryUnknown):
                # Counted from the first search: while the connection was down, nothing could become known.
                passed_s = min(passed_s, asyncio.get_running_loop().time() - began_at)
            if passed_s >= _final_after_s(status):
                return status
            if isinstance(status, NotDelivered) and newest != reply.sent_after:
                # If it still arrives, it arrives after this message: narrow the next search.
                reply = replace(reply, sent_after=newest)
                await self._store.write(lambda uow, reply=reply: rows.narrow_search(uow, reply))
            await self._clock.sleep(POLL_S)

    async def search(
        self, platform: Platform, finder: Finder, message: Outbound, reply: Reply, before_id: str = ""
    ) -> DeliveryStatus:
        """Search once for a message, or for an earlier copy than `before_id`. Raise `PlatformUnavailable`."""
        # One search at a time in a chat: two would claim the same message.
        lock = self._locks.setdefault((platform.name, message.to.chat), asyncio.Lock())
        others: set[str] = set()
        try:
            async with lock:
                while (found := await finder.find(message, reply.sent_after, before_id, others)) is not None:
                    is_other = await self._belongs_to_other(found, reply)
                    delivered = None if is_other else await _edit_to_final(platform, message, found)
                    if delivered is not None:
                        # Otherwise the search for the next part would start at the same mark and find this one.
                        finder.know(message.to, found)
                        return delivered
                    others.add(found)
        except SendUncertain as error:
            return DeliveryUnknown(str(error))
        except PlatformRefused as error:
            return DeliveryUnknown(str(error), is_final=True)
        return NotDelivered()

    async def _belongs_to_other(self, message_id: str, reply: Reply) -> bool:
        """Return true if the message is another reply's, or this reply was forgotten and claims nothing."""
        current = await self._store.read_inline(lambda uow: uow.outbox.reply(reply.turn_id))
        if current is None or current.state is ReplyState.WITHHELD:
            return True
        known = await self._store.read(lambda uow: uow.outbox.sent_as(message_id, reply.at - RECORDED_S))
        chat = reply.key.platform, reply.key.chat
        return any((one.key.platform, one.key.chat) == chat and one.turn_id != reply.turn_id for one in known)


def _final_after_s(status: DeliveryStatus) -> float:
    """Return how long after its sender gave up this status is final."""
    if isinstance(status, Delivered) or (isinstance(status, DeliveryUnknown) and status.is_final):
        return 0.0
    return IN_TRANSIT_S if isinstance(status, NotDelivered) else UNKNOWN_S


async def _edit_to_final(platform: Platform, message: Outbound, message_id: str) -> Delivered | None:
    """Edit a found message to its final text: it may be a beginning.

    A message that cannot be edited is somebody else's, or a file with a caption.
    """
    try:
        await platform.edit(message.to, message_id, message.text, message.buttons)
    except PlatformRefused:
        return Delivered(message_id) if message.files else None
    return Delivered(message_id, is_without_files=bool(message.files))


def with_duplicate_notice(message: Outbound, platform: Platform) -> tuple[Outbound, ...]:
    """Add a line that the message may be a duplicate; as a message of its own if it does not fit."""
    text = f"{MAY_BE_TWICE}\n\n{message.text}".rstrip()
    if len(split_for(text, platform.capabilities)) == 1:
        return (replace(message, text=text),)
    return replace(message, id=f"{message.id}.line", text=MAY_BE_TWICE, buttons=(), files=()), message


class UncertainReplies:
    """The replies whose next part may have been delivered, and their resolution."""

    def __init__(self, check: DeliveryCheck, writer: ReplyWriter, clock: Clock) -> None:
        self._check = check
        self._writer = writer
        self._clock = clock
        self._since: dict[str, float] = {}
        """When the sender of each reply gave up, by the loop's clock."""
        self._deferred_since: dict[str, float] = {}
        """Since when the platform has answered searches with `retry_after`."""

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._since

    def add(self, turn_id: str) -> None:
        """Its sender has given up now, and its next part may have been delivered."""
        self._since[turn_id] = asyncio.get_running_loop().time()

    def discard(self, turn_id: str) -> None:
        self._since.pop(turn_id, None)
        self._deferred_since.pop(turn_id, None)

    async def resolve(self, platform: Platform, reply: Reply, message: Outbound, is_last: bool) -> bool | None:
        """Return true if nothing is left to send, false if parts are left, `None` if this part must be sent again.

        Raise `PlatformUnavailable` if the platform cannot tell yet.
        """
        status = await self._find(platform, reply, message)
        if not isinstance(status, Delivered) and not await self._writer.is_unchanged(reply):
            return True
        fields = rows.reply_fields(reply)
        match status:
            case Delivered(message_id, is_without_files):
                await self._writer.save(rows.with_part_sent(reply, message_id, is_last))
                if is_without_files:
                    await self._writer.report(reply, f"a file of a reply may not have reached {rows.chat_of(reply)}")
                log.info("%s: a reply was found to be delivered", platform.name, extra=fields)
                return is_last
            case NotDelivered():
                log.info("%s: a reply was not delivered; sending it again", platform.name, extra=fields)
                return None
            case DeliveryUnknown(why):
                return await self._send_in_doubt(platform, reply, message, is_last, why)

    async def _find(self, platform: Platform, reply: Reply, message: Outbound) -> DeliveryStatus:
        try:
            return await self._check.find(platform, message, reply, self._since[reply.turn_id])
        except PlatformUnavailable as error:
            now = asyncio.get_running_loop().time()
            if not error.retry_after or now - self._deferred_since.setdefault(reply.turn_id, now) < RETRY_AFTER_S_MAX:
                raise
            return DeliveryUnknown(str(error))

    async def remove_duplicate(
        self, platform: Platform, finder: Finder, reply: Reply, message: Outbound, sent_id: str
    ) -> str:
        """Remove the copy that was sent again if an earlier one exists; return the id of the copy that stays."""
        try:
            status = await self._retry(lambda: self._check.search(platform, finder, message, reply, sent_id))
            if isinstance(status, Delivered):
                await self._retry(lambda: finder.delete(message.to, sent_id))
                fields = rows.reply_fields(reply)
                log.info("%s: a reply was delivered before; removed the second copy", platform.name, extra=fields)
                return status.message_id
            why = status.why if isinstance(status, DeliveryUnknown) else ""
        except PlatformError as error:
            why = str(error)
        if why:
            await self._writer.report(reply, f"a reply may be twice in {rows.chat_of(reply)}: {why}")
        return sent_id

    async def _send_in_doubt(
        self, platform: Platform, reply: Reply, message: Outbound, is_last: bool, why: str
    ) -> bool:
        """Send once more with a notice. Marked before it is sent, so that there is no third time."""
        await self._writer.give_up(reply, ReplyState.AMBIGUOUS, why)
        message_id = ""
        try:
            for one in with_duplicate_notice(message, platform):
                sent_id = await self._send_when_available(reply, lambda one=one: platform.send(one))
                if sent_id is None:
                    return True
                message_id = sent_id
        except PlatformError as error:
            fields = rows.reply_fields(reply)
            log.warning("%s: a reply in doubt was not sent again: %s", platform.name, error, extra=fields)
            return True
        await self._writer.save(rows.with_part_sent(reply, message_id, is_last))
        return is_last

    async def _send_when_available(self, reply: Reply, send: Callable[[], Awaitable[T]]) -> T | None:
        """Retry until the platform is available; return `None` if the reply was forgotten meanwhile.

        While it is certainly not delivered, its state lets the next process resume. Not with a file, whose content is
        removed when the reply is marked.
        """
        delays = BACKOFF.delays()
        while await self._writer.is_unchanged(reply):
            try:
                return await send()
            except PlatformUnavailable as error:
                if not reply.file:
                    await self._writer.save(replace(reply, state=ReplyState.SENDING))
                await self._clock.sleep(max(error.retry_after, next(delays)))
                if not reply.file:
                    await self._writer.save(replace(reply, state=ReplyState.AMBIGUOUS))
        return None

    async def _retry(self, act: Callable[[], Awaitable[T]]) -> T:
        for _ in range(RETRY_TIMES):
            try:
                return await act()
            except PlatformUnavailable as error:
                await self._clock.sleep(max(error.retry_after, RETRY_S))
        return await act()
