"""What a session of ours holds in OpenViking, and how that is changed.

Nothing is kept here but what was last seen, and that counts only as long as the session's own counters are the same: so
a process that starts anew, or a request that was carried out though nobody heard of it, changes nothing.

Our sessions in OpenViking: what each holds is looked at before anything is added, and a commit is seen to its end.

A session there has messages that were not committed yet, and an archive for each commit. A commit puts the messages
away first, and draws memories from them later; if that fails, the server leaves it at that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec import Struct, field
from msgspec.structs import replace

from everthread.adapters.memory.common.http import Sleep
from everthread.adapters.memory.common.locks import Alone
from everthread.adapters.memory.openviking.client import Api, Meta
from everthread.adapters.memory.openviking.codec import (
    About,
    Line,
    about,
    archive,
    has_words,
    is_of,
    marks,
    once,
    origin_tags,
    original,
    room,
    sessions_of,
    sought,
    spare,
    turns,
)
from everthread.adapters.memory.openviking.memories import Memories
from everthread.domain.backoff import Backoff
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


FOLLOW_S_MAX = 45.0
"""How long one delivery waits until memories are drawn. The server goes on with it meanwhile."""
ROUNDS_MAX = 1000
_POLL = Backoff(first_s=0.05, max_s=1.0, factor=1.5)


class _Queued(Struct, frozen=True):
    task_id: str = ""


class _Phase(Struct, frozen=True):
    queue_message: _Queued = field(default_factory=_Queued)


class _ArchiveMeta(Struct, frozen=True):
    phase1: _Phase = field(default_factory=_Phase)


class Rooms:
    def __init__(self, provider: str, api: Api, memories: Memories, sleep: Sleep) -> None:
        self._provider = provider
        self._api = api
        self._memories = memories
        self._sleep = sleep
        self._held = Held(provider, api)
        self._alone = Alone()

    def alone(self, user: str, name: str) -> AbstractAsyncContextManager[object]:
        return self._alone.at(f"{user}/{name}")

    # What is told -----------------------------------------------------------------------------------------------------

    async def begin(self, user: str, session_id: str, parent: str) -> None:
        """A parent that is known stays until another is given."""
        name = room(session_id)
        async with self.alone(user, name):
            there = await self._held.seen_or_made(user, name)
            if there.about.parent != parent:
                await self._held.describe(user, name, there, replace(there.about, parent=parent))

    async def tell(self, user: str, session_id: str, lines: Sequence[Line]) -> None:
        """Say what was not said there yet."""
        if not lines:
            return
        name = room(session_id)
        async with self.alone(user, name):
            there = await self._held.seen_or_made(user, name)
            held, about = marks(there.lines), there.about
            lacking = [
                line for line in lines if line.mark and line.mark not in held and not about.has_told(line.mark.seq)
            ]
            if lacking:
                await self._held.say(user, name, there, lacking)

    async def take_back(self, user: str, session_id: str, numbers: Collection[int]) -> None:
        """Of turns that were committed, what says that it was drawn from them goes."""
        name = room(session_id)
        async with self.alone(user, name):
            there = await self._held.seen(user, name)
            if there is not None:
                there = await self._settled(user, name, session_id, there)
                kept = tuple(line for line in there.live if not is_of(line, numbers))
                if kept != there.live:
                    await self._held.write_anew(user, name, there, kept)
            await self._memories.drop(user, session_id, numbers)

    async def close(
        self,
        user: str,
        session_id: str,
        through: int,
        missing: Sequence[int],
        visible: Collection[int] | None,
    ) -> None:
        """Commit what was said since the last time, if anything was, and see it to its end."""
        name = room(session_id)
        async with self.alone(user, name):
            first = await self._held.seen(user, name)
            if first is None:
                return
            there = await self._settled(user, name, session_id, first, visible)
            if first.open:
                there = await self._held.describe(user, name, there, there.about)
            # A request that was given up may have been carried out long after it was looked for.
            if (kept := once(there.live)) != there.live:
                there = await self._held.write_anew(user, name, there, kept)
            if there.live:
                there = await self._commit(user, name, session_id, there)
            known = replace(there.about.reaching(through), missing=tuple(missing))
            if known != first.about or first.live or first.open:
                await self._held.describe(user, name, there, known)

    async def _commit(self, user: str, name: str, session_id: str, there: Room) -> Room:
        self._held.let_go(user, name)
        numbers = turns(there.live)
        turn = next(iter(numbers)) if len(numbers) == 1 else None
        task = await self._api.commit(user, name, origin_tags(session_id, turn))
        if task is None or await self._is_drawn(user, task):
            there = await self._settled(user, name, session_id, await self._held.must_see(user, name))
            if not there.live:
                return there
        # The server does not try again by itself, and has put the messages away: the next attempt says them again.
        raise Unavailable(self._provider, "could not draw memories from it; see the server's log")

    # What is forgotten ------------------------------------------------------------------------------------------------

    async def forget(self, user: str, session_id: str) -> None:
        name = room(session_id)
        async with self.alone(user, name):
            there = await self._held.seen(user, name)
            if there is not None:
                await self._all_ended(user, there)
                for number in range(there.meta.commit_count, 0, -1):
                    await self._memories.undo(user, archive(user, name, number))
            await self._memories.drop(user, session_id)
            await self._held.delete(user, name)

    async def forget_person(self, user: str) -> None:
        for _ in range(ROUNDS_MAX):
            names = await self._api.sessions(user)
            for name in names:
                async with self.alone(user, name):
                    there = await self._held.seen(user, name)
                    if there is not None:
                        await self._all_ended(user, there)
                    await self._held.delete(user, name)
            if not names:
                break
        await self._memories.drop_all(user)

    async def take_out(self, user: str, words: str) -> None:
        """The words leave what was said and not committed yet; archives that have them go, with their session's others.

        What was drawn from those stays, and is seen to by itself.
        """
        found = {match.uri for match in await self._api.grep(user, sessions_of(user), sought(words))}
        having = [uri for uri in found if has_words(await self._api.read(user, uri) or "", words)]
        for name in {original(uri.removeprefix(f"{sessions_of(user)}/").partition("/")[0]) for uri in having}:
            async with self.alone(user, name):
                there = await self._held.seen(user, name)
                if there is None:
                    continue
                there = await self._settled(user, name, "", there)
                await self._held.write_anew(user, name, there, tuple(line.without(words) for line in there.live))

    # Commits ----------------------------------------------------------------------------------------------------------

    async def _settled(
        self, user: str, name: str, session_id: str, there: Room, visible: Collection[int] | None = None
    ) -> Room:
        """See every commit to its end. What a commit that failed had is said again, as far as it is still shown."""
        for each in there.open:
            if await self._is_ended_well(user, each):
                if session_id:
                    await self._memories.sign(user, session_id, each.uri, each.lines)
                there = replace(there, about=there.about.having_told(each.lines))
                continue
            await self._memories.undo(user, each.uri)
            held = marks(line for other in there.open if other is not each for line in other.lines)
            lost = [line for line in each.lines if line.mark is None or line.mark not in held | marks(there.live)]
            if visible is not None:
                lost = [line for line in lost if not (turns([line]) - set(visible))]
            if lost:
                there = await self._held.say(user, name, there, lost)
        return replace(there, about=replace(there.about, settled=there.meta.commit_count), open=())

    async def _all_ended(self, user: str, there: Room) -> None:
        for each in there.open:
            await self._is_ended_well(user, each)

    async def _is_ended_well(self, user: str, each: Archive) -> bool:
        names = await self._api.names(user, each.uri)
        if ".done" in names or ".failed.json" in names:
            return ".done" in names
        kept = await self._api.parsed(user, f"{each.uri}/.meta.json", _ArchiveMeta)
        task = kept.phase1.queue_message.task_id if kept is not None else ""
        # An archive that no task works on is one that the server broke off at.
        return bool(task) and await self._is_drawn(user, task)

    async def _is_drawn(self, user: str, task: str) -> bool:
        """Follow a task to its end; whether that is a good one."""
        now = asyncio.get_running_loop().time
        deadline, delays = now() + FOLLOW_S_MAX, _POLL.delays()
        while (status := await self._api.task(user, task)) != "completed":
            if status in ("", "failed", "cancelled"):
                return False
            if now() > deadline:
                raise Unavailable(
                    self._provider, f"has not drawn memories from it yet ({status[:20]})", retry_after_s=5
                )
            await self._sleep(next(delays))
        return True
