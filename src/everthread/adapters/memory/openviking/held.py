"""What a session of ours holds in OpenViking, and how that is changed.

Nothing is kept here but what was last seen, and that counts only as long as the session's own counters are the same: so
a process that starts anew, or a request that was carried out though nobody heard of it, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.adapters.memory.openviking.api import Api, Meta
from everthread.adapters.memory.openviking.wording import About, Line, about, archive, marks, sessions_of, spare
from everthread.adapters.memory.wire.alone import Alone
from everthread.domain.errors import Unavailable

KNOWN_MAX = 1024


class Archive(Struct, frozen=True):
    """The messages of one commit."""

    uri: str
    number: int
    lines: tuple[Line, ...]


class Room(Struct, frozen=True):
    meta: Meta
    about: About
    live: tuple[Line, ...] = ()
    """What was not committed yet."""
    open: tuple[Archive, ...] = ()
    """The archives that are not dealt with yet: hardly ever more than one."""

    @property
    def lines(self) -> tuple[Line, ...]:
        return (*(line for each in self.open for line in each.lines), *self.live)


class Held:
    def __init__(self, provider: str, api: Api) -> None:
        self._provider = provider
        self._api = api
        self._known: dict[tuple[str, str], Room] = {}
        self._making = Alone()

    async def seen(self, user: str, name: str) -> Room | None:
        """What a session holds now; None if there is no such session."""
        meta = await self._api.session(user, name)
        if meta is None or about(meta.tags).half:
            meta = await self._restored(user, name, meta)
        if meta is None:
            self.let_go(user, name)
            return None
        known = self._known.get((user, name))
        if known is not None and known.meta.counts == meta.counts:
            return replace(known, about=about(meta.tags))
        there = Room(meta, about(meta.tags))
        if meta.message_count:
            there = replace(there, live=await self._api.lines(user, f"{sessions_of(user)}/{name}"))
        for number in range(there.about.settled + 1, meta.commit_count + 1):
            uri = archive(user, name, number)
            there = replace(there, open=(*there.open, Archive(uri, number, await self._api.lines(user, uri))))
        return self._remember(user, name, there)

    async def must_see(self, user: str, name: str) -> Room:
        there = await self.seen(user, name)
        if there is None:
            raise Unavailable(self._provider, "has lost a session that was there just now", retry_after_s=5)
        return there

    async def seen_or_made(self, user: str, name: str) -> Room:
        there = await self.seen(user, name)
        if there is None:
            # Two first sessions of a new user at once are too much for the server: it says 500 to one of them.
            async with self._making.at(user):
                await self._api.create(user, name, About().tags)
            there = await self.must_see(user, name)
        return there

    def let_go(self, user: str, name: str) -> None:
        """Whatever is known of it may not be so any more."""
        self._known.pop((user, name), None)

    async def say(self, user: str, name: str, there: Room, lines: Sequence[Line]) -> Room:
        self.let_go(user, name)
        await self._api.say(user, name, lines)
        meta, total, count = there.meta, there.meta.total_message_count, len(lines)
        counted = replace(
            meta,
            message_count=meta.message_count + count,
            total_message_count=None if total is None else total + count,
        )
        return self._remember(user, name, replace(there, meta=counted, live=(*there.live, *lines)))

    async def describe(self, user: str, name: str, there: Room, known: About) -> Room:
        self.let_go(user, name)
        await self._api.describe(user, name, known.tags)
        kept = tuple(each for each in there.open if each.number > known.settled)
        return self._remember(user, name, replace(there, about=known, open=kept))

    async def write_anew(self, user: str, name: str, there: Room, lines: tuple[Line, ...]) -> Room:
        """What a session holds can't be changed: a whole copy is made elsewhere first, and comes in its place.

        Its archives go. Everything in them is dealt with.
        """
        self.let_go(user, name)
        known = replace(there.about, settled=0)
        await self._api.delete_session(user, spare(name))
        await self._api.create(user, spare(name), replace(known, half=True).tags)
        await self._api.say(user, spare(name), lines)
        await self._api.describe(user, spare(name), known.tags)
        await self._api.delete_session(user, name)
        return await self.must_see(user, name)

    async def delete(self, user: str, name: str) -> None:
        self.let_go(user, name)
        # The copy first: it would come back.
        await self._api.delete_session(user, spare(name))
        await self._api.delete_session(user, name)

    async def _restored(self, user: str, name: str, meta: Meta | None) -> Meta | None:
        """Bring a whole copy back to its place, wherever somebody has left off with that."""
        copy = await self._api.session(user, spare(name))
        if copy is not None and not about(copy.tags).half:
            known = about(copy.tags)
            if meta is None:
                await self._api.create(user, name, replace(known, half=True).tags)
            held = marks(await self._api.lines(user, f"{sessions_of(user)}/{name}"))
            lines = await self._api.lines(user, f"{sessions_of(user)}/{spare(name)}")
            await self._api.say(user, name, [line for line in lines if line.mark is None or line.mark not in held])
            await self._api.delete_session(user, spare(name))
        elif meta is None:
            return None
        else:
            # The copy goes when all of it is back.
            known = replace(about(meta.tags), half=False)
        await self._api.describe(user, name, known.tags)
        return await self._api.session(user, name)

    def _remember(self, user: str, name: str, there: Room) -> Room:
        while len(self._known) >= KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        # Without what the session counts, nobody could tell whether it is still so.
        if there.meta.total_message_count is not None:
            self._known[user, name] = there
        return there
