"""Memories that OpenViking extracted, and notes: files of each user, tagged with the session they come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct, field

from everthread.adapters.memory.openviking.client import OpenVikingClient
from everthread.adapters.memory.openviking.codec import (
    SessionMessage,
    grep_pattern,
    memories_uri,
    note_tags,
    note_uri,
    origin_tags,
    parse_origin,
    parse_version,
    remainder_uri,
    session_tag,
    source_turn,
)
from everthread.domain.model import FORGOTTEN

ROUNDS_MAX = 1000


class MemoryChange(Struct, frozen=True):
    """A memory that a commit changed or, without a `before`, created."""

    uri: str
    before: str = ""
    after: str = ""


class _DiffOperations(Struct, frozen=True):
    adds: list[MemoryChange] = field(default_factory=list[MemoryChange])
    updates: list[MemoryChange] = field(default_factory=list[MemoryChange])


class _MemoryDiff(Struct, frozen=True):
    operations: _DiffOperations = field(default_factory=_DiffOperations)


class MemoryFiles:
    def __init__(self, api: OpenVikingClient) -> None:
        self._api = api

    # Notes ------------------------------------------------------------------------------------------------------------

    async def write_note(self, user: str, session_id: str, note_id: str, version: int, content: str) -> None:
        """Replace the earlier versions of a note. An empty content deletes it."""
        uri = note_uri(user, note_id)
        if parse_version(await self._api.tags(user, uri) or ()) > version:
            # Sessions are delivered independently: a newer version from another one came first.
            return
        if content:
            await self._api.write(user, uri, content, note_tags(session_id, note_id, version))
        else:
            await self._api.remove(user, uri)

    async def forget_note(self, user: str, note_id: str) -> None:
        await self._api.remove(user, note_uri(user, note_id))

    # Extracted memories -----------------------------------------------------------------------------------------------

    async def tag_origin(self, user: str, session_id: str, archive: str, messages: Sequence[SessionMessage]) -> None:
        """Tag the memories extracted from an archive with their session and, if it is known, their turn."""
        changes = await self._changes(user, archive)
        if not changes:
            return
        tagged = await self._api.find_tagged(user, [session_tag(session_id)])
        origins = {memory.uri: parse_origin(memory.tags) for memory in tagged}
        for change in changes:
            turn = source_turn(change.after, messages)
            if origins.get(change.uri) != (session_id, turn):
                await self._api.tag_file(user, change.uri, origin_tags(session_id, turn))

    async def undo(self, user: str, archive: str) -> None:
        """Revert the memories that the commit of an archive changed.

        A memory that was changed again since can't be restored, and is deleted.
        """
        for change in reversed(await self._changes(user, archive)):
            if not change.before:
                await self._api.remove(user, change.uri)
                continue
            now = await self._api.read(user, change.uri)
            if now is not None and now.strip() == change.after.strip():
                await self._api.write(user, change.uri, change.before, [])
            elif now is not None and now.strip() != change.before.strip():
                await self._api.remove(user, change.uri)

    async def delete(self, user: str, session_id: str, turns: Collection[int] | None = None) -> None:
        """Delete the memories tagged with a session or, if given, with these turns of it."""
        for _ in range(ROUNDS_MAX):
            tagged = await self._api.find_tagged(user, [session_tag(session_id)])
            doomed = [memory for memory in tagged if turns is None or parse_origin(memory.tags)[1] in turns]
            for memory in doomed:
                await self._api.remove(user, memory.uri)
            if not doomed:
                return

    async def delete_all(self, user: str) -> None:
        await self._api.remove(user, memories_uri(user), recursive=True)

    async def forget_text(self, user: str, text: str) -> None:
        """Remove a text, literally, from every memory. The remainder of the memory moves to another file name."""
        for uri in {match.uri for match in await self._api.grep(user, memories_uri(user), grep_pattern(text))}:
            content = await self._api.read(user, uri)
            if content is None or text not in content:
                continue
            remainder = content.replace(text, FORGOTTEN)
            if remainder.replace(FORGOTTEN, "").strip():
                tags = await self._api.tags(user, uri) or []
                await self._api.write(user, remainder_uri(user, uri), remainder, tags)
            await self._api.remove(user, uri)

    async def _changes(self, user: str, archive: str) -> list[MemoryChange]:
        diff = await self._api.read_json(user, f"{archive}/memory_diff.json", _MemoryDiff)
        return [] if diff is None else [*diff.operations.adds, *diff.operations.updates]
