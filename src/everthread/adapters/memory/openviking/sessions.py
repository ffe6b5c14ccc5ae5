"""Our sessions in OpenViking: append messages, commit, rewind and forget.

A session has live messages and an archive for each commit. A commit archives the live messages first and extracts
memories from them later, in a task. If the task fails, the server does not retry it: the messages are appended again,
and committed again by the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec import Struct, field
from msgspec.structs import replace

from everthread.adapters.memory.common.http import Sleep
from everthread.adapters.memory.common.locks import KeyedLocks
from everthread.adapters.memory.openviking.client import OpenVikingClient
from everthread.adapters.memory.openviking.codec import (
    SessionMessage,
    archive_uri,
    belongs_to,
    contains_text,
    entry_marks,
    grep_pattern,
    origin_tags,
    original_name,
    session_name,
    sessions_uri,
    turn_numbers,
    without_duplicates,
)
from everthread.adapters.memory.openviking.memory_files import MemoryFiles
from everthread.adapters.memory.openviking.session_cache import SessionArchive, SessionCache, SessionState
from everthread.domain.backoff import Backoff
from everthread.domain.errors import Unavailable

EXTRACT_S_MAX = 45.0
"""How long one delivery waits for the extraction of memories. The server goes on with it meanwhile."""
ROUNDS_MAX = 1000
_POLL = Backoff(first_s=0.05, max_s=1.0, factor=1.5)


class _QueueMessage(Struct, frozen=True):
    task_id: str = ""


class _ArchivePhase(Struct, frozen=True):
    queue_message: _QueueMessage = field(default_factory=_QueueMessage)


class _ArchiveInfo(Struct, frozen=True):
    phase1: _ArchivePhase = field(default_factory=_ArchivePhase)


class OpenVikingSessions:
    def __init__(self, provider: str, api: OpenVikingClient, sleep: Sleep) -> None:
        self.api = api
        self.memories = MemoryFiles(api)
        self._provider = provider
        self._sleep = sleep
        self._cache = SessionCache(provider, api)
        self._locks = KeyedLocks()

    async def aclose(self) -> None:
        await self.api.aclose()

    async def check(self) -> None:
        await self.api.check()

    def lock(self, user: str, name: str) -> AbstractAsyncContextManager[object]:
        return self._locks.lock(f"{user}/{name}")

    # Log entries ------------------------------------------------------------------------------------------------------

    async def set_parent(self, user: str, session_id: str, parent: str) -> None:
        name = session_name(session_id)
        async with self.lock(user, name):
            state = await self._cache.get_or_create(user, name)
            if state.tags.parent != parent:
                await self._cache.set_tags(user, name, state, replace(state.tags, parent=parent))

    async def append(self, user: str, session_id: str, messages: Sequence[SessionMessage]) -> None:
        """Append the messages that are missing."""
        if not messages:
            return
        name = session_name(session_id)
        async with self.lock(user, name):
            state = await self._cache.get_or_create(user, name)
            stored, tags = entry_marks(state.messages), state.tags
            missing = [
                message
                for message in messages
                if message.mark and message.mark not in stored and not tags.covers(message.mark.seq)
            ]
            if missing:
                await self._cache.append(user, name, state, missing)

    async def rewind(self, user: str, session_id: str, turns: Collection[int]) -> None:
        """Remove the live messages of these turns, and the memories that are tagged with them."""
        name = session_name(session_id)
        async with self.lock(user, name):
            state = await self._cache.get(user, name)
            if state is not None:
                state = await self._process_archives(user, name, session_id, state)
                kept = tuple(message for message in state.live if not belongs_to(message, turns))
                if kept != state.live:
                    await self._cache.rewrite(user, name, state, kept)
            await self.memories.delete(user, session_id, turns)

    async def close(
        self,
        user: str,
        session_id: str,
        through: int,
        missing: Sequence[int],
        visible: Collection[int] | None,
    ) -> None:
        """Commit the live messages, if any, and wait until memories are extracted."""
        name = session_name(session_id)
        async with self.lock(user, name):
            first = await self._cache.get(user, name)
            if first is None:
                return
            state = await self._process_archives(user, name, session_id, first, visible)
            if first.open:
                state = await self._cache.set_tags(user, name, state, state.tags)
            # A request that timed out can take effect after `append` has compared the messages.
            if (kept := without_duplicates(state.live)) != state.live:
                state = await self._cache.rewrite(user, name, state, kept)
            if state.live:
                state = await self._commit(user, name, session_id, state)
            tags = replace(state.tags.covering_through(through), missing=tuple(missing))
            if tags != first.tags or first.live or first.open:
                await self._cache.set_tags(user, name, state, tags)

    async def _commit(self, user: str, name: str, session_id: str, state: SessionState) -> SessionState:
        self._cache.invalidate(user, name)
        numbers = turn_numbers(state.live)
        turn = next(iter(numbers)) if len(numbers) == 1 else None
        task = await self.api.commit(user, name, origin_tags(session_id, turn))
        if task is None or await self._wait_extracted(user, task):
            state = await self._cache.get_existing(user, name)
            state = await self._process_archives(user, name, session_id, state)
            if not state.live:
                return state
        raise Unavailable(self._provider, "could not extract memories; see the server's log")

    # Forgetting -------------------------------------------------------------------------------------------------------

    async def forget_session(self, user: str, session_id: str) -> None:
        name = session_name(session_id)
        async with self.lock(user, name):
            state = await self._cache.get(user, name)
            if state is not None:
                await self._wait_tasks(user, state)
                for number in range(state.info.commit_count, 0, -1):
                    await self.memories.undo(user, archive_uri(user, name, number))
            await self.memories.delete(user, session_id)
            await self._cache.delete(user, name)

    async def forget_user(self, user: str) -> None:
        for _ in range(ROUNDS_MAX):
            names = await self.api.sessions(user)
            for name in names:
                async with self.lock(user, name):
                    state = await self._cache.get(user, name)
                    if state is not None:
                        await self._wait_tasks(user, state)
                    await self._cache.delete(user, name)
            if not names:
                break
        await self.memories.delete_all(user)

    async def forget_text(self, user: str, text: str) -> None:
        """Remove a text, literally, from live messages and from memories.

        A session whose archives contain it loses all its archives; the memories extracted from them stay.
        """
        uris = {match.uri for match in await self.api.grep(user, sessions_uri(user), grep_pattern(text))}
        containing = [uri for uri in uris if contains_text(await self.api.read(user, uri) or "", text)]
        folders = {uri.removeprefix(f"{sessions_uri(user)}/").partition("/")[0] for uri in containing}
        for name in {original_name(folder) for folder in folders}:
            async with self.lock(user, name):
                state = await self._cache.get(user, name)
                if state is None:
                    continue
                state = await self._process_archives(user, name, "", state)
                await self._cache.rewrite(user, name, state, tuple(message.without(text) for message in state.live))
        await self.memories.forget_text(user, text)

    # Archives and tasks -----------------------------------------------------------------------------------------------

    async def _process_archives(
        self, user: str, name: str, session_id: str, state: SessionState, visible: Collection[int] | None = None
    ) -> SessionState:
        """Wait for every open commit. Append the messages of failed ones again, as far as their turns are visible."""
        for archive in state.open:
            if await self._has_succeeded(user, archive):
                if session_id:
                    await self.memories.tag_origin(user, session_id, archive.uri, archive.messages)
                state = replace(state, tags=state.tags.covering(archive.messages))
                continue
            await self.memories.undo(user, archive.uri)
            stored = entry_marks(message for other in state.open if other is not archive for message in other.messages)
            stored |= entry_marks(state.live)
            lost = [message for message in archive.messages if message.mark is None or message.mark not in stored]
            if visible is not None:
                lost = [message for message in lost if not (turn_numbers([message]) - set(visible))]
            if lost:
                state = await self._cache.append(user, name, state, lost)
        return replace(state, tags=replace(state.tags, settled=state.info.commit_count), open=())

    async def _wait_tasks(self, user: str, state: SessionState) -> None:
        for archive in state.open:
            await self._has_succeeded(user, archive)

    async def _has_succeeded(self, user: str, archive: SessionArchive) -> bool:
        names = await self.api.list_folder(user, archive.uri)
        if ".done" in names or ".failed.json" in names:
            return ".done" in names
        info = await self.api.read_json(user, f"{archive.uri}/.meta.json", _ArchiveInfo)
        task = info.phase1.queue_message.task_id if info is not None else ""
        # Without a task, the server was interrupted while it made the archive.
        return bool(task) and await self._wait_extracted(user, task)

    async def _wait_extracted(self, user: str, task: str) -> bool:
        """Wait for the end of a task, and return whether it succeeded."""
        now = asyncio.get_running_loop().time
        deadline, delays = now() + EXTRACT_S_MAX, _POLL.delays()
        while (status := await self.api.task_status(user, task)) != "completed":
            if status in ("", "failed", "cancelled"):
                return False
            if now() > deadline:
                raise Unavailable(
                    self._provider, f"the extraction of memories is not done yet ({status[:20]})", retry_after_s=5
                )
            await self._sleep(next(delays))
        return True
