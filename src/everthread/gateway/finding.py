"""Whether a part that was handed over is out, asked of the platform: so nothing comes twice, and nothing is missing.

A part of which nothing was heard is looked for behind what was known when it was handed over. What is found is made to
be the part, and not sent again. What is not found is looked for once more when nothing of it can be on its way any
longer; then it is sent again, and looked for a last time, between there and here. Where nobody can say, whoever waits
for it gets it with a line that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import PlatformRefused, SendUncertain
from everthread.domain.model import Reply, ReplyState
from everthread.gateway import outgoing
from everthread.gateway.splitting import parts_of
from everthread.ports import Clock, Platform, Store
from everthread.ports.platform import Address, Finder, Outbound

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
        known = await self._store.read(lambda uow: uow.inbox.newest_known(KNOWN_MAX))
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
        wanted = await self._store.peek(lambda uow: uow.inbox.reply(reply.turn_id))
        if wanted is None or wanted.state is ReplyState.WITHHELD:
            return True
        known = await self._store.read(lambda uow: uow.inbox.out_as(message_id, reply.at - RECORDED_S))
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
