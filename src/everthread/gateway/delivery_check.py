"""Whether a part that was handed over is out, asked of the platform: so nothing comes twice, and nothing is missing.

A part of which nothing was heard is looked for behind what was known when it was handed over. What is found is made to
be the part, and not sent again. What is not found is looked for once more when nothing of it can be on its way any
longer; then it is sent again, and looked for a last time, between there and here. Where nobody can say, whoever waits
for it gets it with a line that says so.

What is done about a part that may be out, by what was found of it (see `finding`).
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
from everthread.gateway import outbox_rows as outgoing
from everthread.gateway.message_split import parts_of
from everthread.gateway.outbox_rows import Ledger
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Finder, Outbound, Platform
from everthread.store.unit_of_work import Store

SETTLED_S = 2.0
"""What a platform has not done by then of what it was handed, it never does."""
KNOWN_S = 15.0
"""What nobody can say by then, nobody is asked any more."""
LOOK_S = 1.0
RECORDED_S = 86_400.0
"""Whatever is noted under the id of a message that is looked for is not older than that, by comparison."""
KNOWN_MAX = 1000
MAY_BE_TWICE = "(This may be here twice: the connection broke off while it was being sent.)"


class There(Struct, frozen=True):
    """It is out, or a beginning of it is."""

    message_id: str
    is_without_files: bool = False
    """A text was found, and files go with it: nobody knows whether these are out."""


class Nowhere(Struct, frozen=True):
    """It is not out, and will not come."""


class NobodyKnows(Struct, frozen=True):
    why: str
    for_good: bool = False
    """Otherwise it may be known later: what comes in meanwhile leaves less to ask for."""


Sighting = There | Nowhere | NobodyKnows


class Finding:
    """Looks for what may be out. Keeps nothing: whoever dies while looking leaves everything as it was."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._looking: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def remind(self, platforms: Mapping[str, Platform]) -> None:
        """Tell those that can look what is known from processes that are gone."""
        finders = {name: platform.finder for name, platform in platforms.items()}
        if not any(finders.values()):
            return
        known = await self._store.read(lambda uow: uow.outbox.newest_known(KNOWN_MAX))
        moved = await self._store.read(lambda uow: {(name, now) for (name, _), now in uow.inbox.moved_chats().items()})
        for key, message_id in known:
            finder = finders.get(key.platform)
            # What was said before a chat has moved is numbered in another way than what is said there now.
            if finder is not None and (key.platform, key.chat) not in moved:
                finder.know(Address.of(key), message_id)

    async def look(self, platform: Platform, message: Outbound, reply: Reply, gone_at: float) -> Sighting:
        """What is found reads as the message does from then on. `gone_at` is when whoever had handed it over was done
        with it, by the loop's clock. Raises `PlatformUnavailable`.
        """
        finder = platform.finder
        assert finder is not None, "nobody looks where nothing can be found"
        if not reply.sent_after:
            return NobodyKnows("nothing was known of that chat when it was handed over")
        began_at = asyncio.get_running_loop().time()
        while True:
            # Before it is asked: what comes while it is asked may be missed.
            passed_s, newest = asyncio.get_running_loop().time() - gone_at, finder.newest(message.to)
            seen = await self._look(platform, finder, message, reply)
            if isinstance(seen, NobodyKnows):
                # Not from when the connection broke: while it was broken, nothing could become known.
                passed_s = min(passed_s, asyncio.get_running_loop().time() - began_at)
            if passed_s >= _enough_s(seen):
                return seen
            if isinstance(seen, Nowhere) and newest != reply.sent_after:
                # If it comes yet, it comes behind what is there by now: nobody has to ask for that again.
                reply = replace(reply, sent_after=newest)
                await self._store.write(lambda uow, reply=reply: outgoing.looked(uow, reply.turn_id, reply.sent_after))
            await self._clock.sleep(LOOK_S)

    async def look_before(
        self, platform: Platform, finder: Finder, message: Outbound, reply: Reply, message_id: str
    ) -> Sighting:
        """Whether what has gone out again under this id was there before. Raises `PlatformUnavailable`."""
        return await self._look(platform, finder, message, reply, message_id)

    async def _look(
        self, platform: Platform, finder: Finder, message: Outbound, reply: Reply, until: str = ""
    ) -> Sighting:
        # One after another in a chat: two would find the same, and each make it to be its own.
        looking = self._looking.setdefault((platform.name, message.to.chat), asyncio.Lock())
        others: set[str] = set()
        try:
            async with looking:
                while (found := await finder.find(message, reply.sent_after, until, others)) is not None:
                    there = None if await self._is_anothers(found, reply) else await _made(platform, message, found)
                    if there is not None:
                        # Otherwise the next part would be looked for behind the same mark, and this one taken for it.
                        finder.know(message.to, found)
                        return there
                    others.add(found)
        except SendUncertain as error:
            return NobodyKnows(str(error))
        except PlatformRefused as error:
            return NobodyKnows(str(error), for_good=True)
        return Nowhere()

    async def _is_anothers(self, message_id: str, reply: Reply) -> bool:
        """Whether it is known as another reply's, or its beginning; or this one was forgotten, and becomes nothing."""
        wanted = await self._store.read_inline(lambda uow: uow.outbox.reply(reply.turn_id))
        if wanted is None or wanted.state is ReplyState.WITHHELD:
            return True
        known = await self._store.read(lambda uow: uow.outbox.out_as(message_id, reply.at - RECORDED_S))
        place = reply.key.platform, reply.key.chat
        return any((one.key.platform, one.key.chat) == place and one.turn_id != reply.turn_id for one in known)


def _enough_s(seen: Sighting) -> float:
    """How long after nobody has it in hand any more this may be taken for the truth."""
    if isinstance(seen, There) or (isinstance(seen, NobodyKnows) and seen.for_good):
        return 0.0
    return SETTLED_S if isinstance(seen, Nowhere) else KNOWN_S


async def _made(platform: Platform, message: Outbound, message_id: str) -> There | None:
    """Let what was found read as it is to: it may be a beginning, or that of another answer. If that can't be done, it
    is somebody else's after all, or a file that has its words under it.
    """
    try:
        await platform.edit(message.to, message_id, message.text, message.buttons)
    except PlatformRefused:
        return There(message_id) if message.files else None
    return There(message_id, is_without_files=bool(message.files))


def doubtful(message: Outbound, platform: Platform) -> tuple[Outbound, ...]:
    """What goes out where nobody can say whether it is there: it says so, in its first line if there is room."""
    whole = f"{MAY_BE_TWICE}\n\n{message.text}".rstrip()
    if len(parts_of(whole, platform.capabilities)) == 1:
        return (replace(message, text=whole),)
    return replace(message, id=f"{message.id}.line", text=MAY_BE_TWICE, buttons=(), files=()), message


log = logging.getLogger("everthread.gateway")

PATIENT_TIMES = 5
PATIENT_S = 0.5
BACKOFF = Backoff(first_s=0.5, max_s=60.0)
TOLD_TO_WAIT_S_MAX = 60.0
"""Whoever is told to wait each time would begin to look for ever: after that, nobody can say."""

T = TypeVar("T")


class Settling:
    def __init__(self, finding: Finding, ledger: Ledger, clock: Clock) -> None:
        self._finding = finding
        self._ledger = ledger
        self._clock = clock
        self._since: dict[str, float] = {}
        """Replies whose next part may be out, and since when nobody has it in hand any more, by the loop's clock."""
        self._told_to_wait: dict[str, float] = {}
        """Since when, of those that could not be looked for."""

    def is_open(self, turn_id: str) -> bool:
        return turn_id in self._since

    def open(self, turn_id: str) -> None:
        """Nobody has its next part in hand from now on, and it may be out."""
        self._since[turn_id] = asyncio.get_running_loop().time()

    def leave(self, turn_id: str) -> None:
        """Nothing is to become of it any more."""
        self._since.pop(turn_id, None)
        self._told_to_wait.pop(turn_id, None)

    async def settle(self, platform: Platform, reply: Reply, message: Outbound, last: bool) -> bool | None:
        """Whether that was the last of it; `None` if it is not out, and is to be sent again. Raises
        `PlatformUnavailable` if that can't be told yet.
        """
        seen = await self._look(platform, reply, message)
        if not isinstance(seen, There) and not await self._ledger.has_its_words(reply):
            return True
        where = log_fields(reply.key, reply.session_id, reply.turn_id)
        match seen:
            case There(message_id, is_without_files):
                await self._ledger.mark(outgoing.sent(reply, message_id, last))
                if is_without_files:
                    place = f"{reply.key.platform} chat {reply.key.chat}"
                    await self._ledger.tell(reply, f"a file of a reply may not have reached {place}")
                log.info("%s: a reply was found to be out", platform.name, extra=where)
                settled = last
            case Nowhere():
                log.info("%s: a reply was not out, and is sent again", platform.name, extra=where)
                settled = None
            case NobodyKnows(why):
                settled = await self._send_in_doubt(platform, reply, message, last, why)
        return settled

    async def _look(self, platform: Platform, reply: Reply, message: Outbound) -> Sighting:
        try:
            return await self._finding.look(platform, message, reply, self._since[reply.turn_id])
        except PlatformUnavailable as error:
            now = asyncio.get_running_loop().time()
            if not error.retry_after or now - self._told_to_wait.setdefault(reply.turn_id, now) < TOLD_TO_WAIT_S_MAX:
                raise
            return NobodyKnows(str(error))

    async def only_one(self, platform: Platform, finder: Finder, reply: Reply, message: Outbound, again_id: str) -> str:
        """What has gone out again may have been there all the time, where nobody had looked: then one of them is taken
        back. The id of the other.
        """
        try:
            seen = await self._patiently(lambda: self._finding.look_before(platform, finder, message, reply, again_id))
            if isinstance(seen, There):
                await self._patiently(lambda: finder.take_back(message.to, again_id))
                where = log_fields(reply.key, reply.session_id, reply.turn_id)
                log.info("%s: a reply was there after all, and the second was taken back", platform.name, extra=where)
                return seen.message_id
            why = seen.why if isinstance(seen, NobodyKnows) else ""
        except PlatformError as error:
            why = str(error)
        if why:
            await self._ledger.tell(reply, f"a reply may be twice in {reply.key.platform} chat {reply.key.chat}: {why}")
        return again_id

    async def _send_in_doubt(self, platform: Platform, reply: Reply, message: Outbound, last: bool, why: str) -> bool:
        """Marked before it is sent again: whatever becomes of that, it is not sent a third time."""
        await self._ledger.give_up(reply, ReplyState.AMBIGUOUS, why)
        message_id = ""
        try:
            for one in doubtful(message, platform):
                if (out := await self._whenever(reply, lambda one=one: platform.send(one))) is None:
                    return True
                message_id = out
        except PlatformError as error:
            where = log_fields(reply.key, reply.session_id, reply.turn_id)
            log.warning("%s: a reply that may be out was not sent again: %s", platform.name, error, extra=where)
            return True
        await self._ledger.mark(outgoing.sent(reply, message_id, last))
        return last

    async def _whenever(self, reply: Reply, act: Callable[[], Awaitable[T]]) -> T | None:
        """However long the platform is away; `None` if it was forgotten meanwhile. As long as it has certainly not gone
        out, whoever comes next is to take it up; but not with a file, which is gone once it is marked.
        """
        delays = BACKOFF.delays()
        while await self._ledger.has_its_words(reply):
            try:
                return await act()
            except PlatformUnavailable as error:
                if not reply.file:
                    await self._ledger.mark(replace(reply, state=ReplyState.SENDING))
                await self._clock.sleep(max(error.retry_after, next(delays)))
                if not reply.file:
                    await self._ledger.mark(replace(reply, state=ReplyState.AMBIGUOUS))
        return None

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """If it is told to wait, it waits: what was done before would be done again otherwise."""
        for _ in range(PATIENT_TIMES):
            try:
                return await act()
            except PlatformUnavailable as error:
                await self._clock.sleep(max(error.retry_after, PATIENT_S))
        return await act()
