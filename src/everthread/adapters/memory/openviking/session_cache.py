"""State of the sessions in OpenViking, cached, and replacing a session by a rewritten copy.

A cached state is used only while the counters that the server reports are unchanged. So neither a restart nor a request
whose response was lost leads to a wrong state.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.adapters.memory.common.locks import KeyedLocks
from everthread.adapters.memory.openviking.client import OpenVikingClient, SessionInfo
from everthread.adapters.memory.openviking.codec import (
    SessionMessage,
    SessionTags,
    archive_uri,
    copy_name,
    entry_marks,
    parse_tags,
    sessions_uri,
)
from everthread.domain.errors import Unavailable

CACHED_MAX = 1024


class SessionArchive(Struct, frozen=True):
    """The messages of one commit."""

    uri: str
    number: int
    messages: tuple[SessionMessage, ...]


class SessionState(Struct, frozen=True):
    info: SessionInfo
    tags: SessionTags
    live: tuple[SessionMessage, ...] = ()
    """Messages that are not committed yet."""
    open: tuple[SessionArchive, ...] = ()
    """Archives that are not processed yet; rarely more than one."""

    @property
    def messages(self) -> tuple[SessionMessage, ...]:
        return (*(message for archive in self.open for message in archive.messages), *self.live)


class SessionCache:
    def __init__(self, provider: str, api: OpenVikingClient) -> None:
        self._provider = provider
        self._api = api
        self._cache: dict[tuple[str, str], SessionState] = {}
        self._creating = KeyedLocks()

    async def get(self, user: str, name: str) -> SessionState | None:
        """Return the current state of a session; None if there is no such session."""
        info = await self._api.session(user, name)
        if info is None or parse_tags(info.tags).partial:
            info = await self._restore_copy(user, name, info)
        if info is None:
            self.invalidate(user, name)
            return None
        cached = self._cache.get((user, name))
        if cached is not None and cached.info.counts == info.counts:
            return replace(cached, tags=parse_tags(info.tags))
        state = SessionState(info, parse_tags(info.tags))
        if info.message_count:
            state = replace(state, live=await self._api.messages(user, f"{sessions_uri(user)}/{name}"))
        for number in range(state.tags.settled + 1, info.commit_count + 1):
            uri = archive_uri(user, name, number)
            archive = SessionArchive(uri, number, await self._api.messages(user, uri))
            state = replace(state, open=(*state.open, archive))
        return self._remember(user, name, state)

    async def get_existing(self, user: str, name: str) -> SessionState:
        state = await self.get(user, name)
        if state is None:
            raise Unavailable(self._provider, "a session disappeared while it was written", retry_after_s=5)
        return state

    async def get_or_create(self, user: str, name: str) -> SessionState:
        state = await self.get(user, name)
        if state is None:
            # The server answers 500 to one of two first sessions of a new user that are created at the same time.
            async with self._creating.lock(user):
                await self._api.create(user, name, SessionTags().tags)
            state = await self.get_existing(user, name)
        return state

    def invalidate(self, user: str, name: str) -> None:
        self._cache.pop((user, name), None)

    async def append(
        self, user: str, name: str, state: SessionState, messages: Sequence[SessionMessage]
    ) -> SessionState:
        self.invalidate(user, name)
        await self._api.append(user, name, messages)
        info, total, count = state.info, state.info.total_message_count, len(messages)
        counted = replace(
            info,
            message_count=info.message_count + count,
            total_message_count=None if total is None else total + count,
        )
        return self._remember(user, name, replace(state, info=counted, live=(*state.live, *messages)))

    async def set_tags(self, user: str, name: str, state: SessionState, tags: SessionTags) -> SessionState:
        self.invalidate(user, name)
        await self._api.set_tags(user, name, tags.tags)
        unprocessed = tuple(archive for archive in state.open if archive.number > tags.settled)
        return self._remember(user, name, replace(state, tags=tags, open=unprocessed))

    async def rewrite(
        self, user: str, name: str, state: SessionState, messages: tuple[SessionMessage, ...]
    ) -> SessionState:
        """Replace the messages of a session, which can't be edited, by way of a complete copy.

        The archives are deleted; all of them must be processed.
        """
        self.invalidate(user, name)
        tags = replace(state.tags, settled=0)
        await self._api.delete_session(user, copy_name(name))
        await self._api.create(user, copy_name(name), replace(tags, partial=True).tags)
        await self._api.append(user, copy_name(name), messages)
        await self._api.set_tags(user, copy_name(name), tags.tags)
        await self._api.delete_session(user, name)
        return await self.get_existing(user, name)

    async def delete(self, user: str, name: str) -> None:
        self.invalidate(user, name)
        # The copy first: it would be restored.
        await self._api.delete_session(user, copy_name(name))
        await self._api.delete_session(user, name)

    async def _restore_copy(self, user: str, name: str, info: SessionInfo | None) -> SessionInfo | None:
        """Finish replacing a session by its complete copy, at whatever step that was interrupted."""
        copy = await self._api.session(user, copy_name(name))
        if copy is not None and not parse_tags(copy.tags).partial:
            tags = parse_tags(copy.tags)
            if info is None:
                await self._api.create(user, name, replace(tags, partial=True).tags)
            stored = entry_marks(await self._api.messages(user, f"{sessions_uri(user)}/{name}"))
            messages = await self._api.messages(user, f"{sessions_uri(user)}/{copy_name(name)}")
            missing = [message for message in messages if message.mark is None or message.mark not in stored]
            await self._api.append(user, name, missing)
            await self._api.delete_session(user, copy_name(name))
        elif info is None:
            return None
        else:
            # The copy is deleted only after everything was restored from it.
            tags = replace(parse_tags(info.tags), partial=False)
        await self._api.set_tags(user, name, tags.tags)
        return await self._api.session(user, name)

    def _remember(self, user: str, name: str, state: SessionState) -> SessionState:
        while len(self._cache) >= CACHED_MAX:
            self._cache.pop(next(iter(self._cache)))
        # Without a counter, a change of the session could not be noticed.
        if state.info.total_message_count is not None:
            self._cache[user, name] = state
        return state
