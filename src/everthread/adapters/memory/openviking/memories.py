"""What OpenViking has drawn from conversations, and the notes: files of each person, which say where they come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct, field

from everthread.adapters.memory.openviking.client import Api
from everthread.adapters.memory.openviking.codec import (
    Line,
    memories_of,
    note_file,
    note_tags,
    origin,
    origin_tags,
    rest_file,
    session_tag,
    sought,
    turn_of,
    version,
)
from everthread.domain.model import FORGOTTEN

ROUNDS_MAX = 1000


class Change(Struct, frozen=True):
    """What a commit has done to one memory. Without a `before`, it has made it."""

    uri: str
    before: str = ""
    after: str = ""


class _Operations(Struct, frozen=True):
    adds: list[Change] = field(default_factory=list[Change])
    updates: list[Change] = field(default_factory=list[Change])


class _Drawn(Struct, frozen=True):
    operations: _Operations = field(default_factory=_Operations)


class Memories:
    def __init__(self, api: Api) -> None:
        self._api = api

    # Notes ------------------------------------------------------------------------------------------------------------

    async def note(self, user: str, session_id: str, note_id: str, wording: int, content: str) -> None:
        """A note's newest wording takes the place of what it said before; nothing in it means that it goes."""
        uri = note_file(user, note_id)
        if version(await self._api.tags(user, uri) or ()) > wording:
            # Sessions do not wait for each other: this one comes late.
            return
        if content.strip():
            await self._api.write(user, uri, content, note_tags(session_id, note_id, wording))
        else:
            await self._api.remove(user, uri)

    async def forget_note(self, user: str, note_id: str) -> None:
        await self._api.remove(user, note_file(user, note_id))

    # What was drawn from conversations --------------------------------------------------------------------------------

    async def sign(self, user: str, session_id: str, archive: str, lines: Sequence[Line]) -> None:
        """Have what was drawn from an archive say which session it is from, and which turn if that can be told."""
        changes = await self._changes(user, archive)
        if not changes:
            return
        signed = {found.uri: origin(found.tags) for found in await self._api.tagged(user, [session_tag(session_id)])}
        for change in changes:
            turn = turn_of(change.after, lines)
            if signed.get(change.uri) != (session_id, turn):
                await self._api.tag(user, change.uri, origin_tags(session_id, turn))

    async def undo(self, user: str, archive: str) -> None:
        """Take back what was drawn from an archive.

        What was there before and was only changed is as before, unless it was changed again since: then it goes whole.
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

    async def drop(self, user: str, session_id: str, turns: Collection[int] | None = None) -> None:
        """Delete what says that it is from a session, or from these turns of it."""
        for _ in range(ROUNDS_MAX):
            found = await self._api.tagged(user, [session_tag(session_id)])
            gone = [one for one in found if turns is None or origin(one.tags)[1] in turns]
            for one in gone:
                await self._api.remove(user, one.uri)
            if not gone:
                return

    async def drop_all(self, user: str) -> None:
        await self._api.remove(user, memories_of(user), recursive=True)

    async def take_out(self, user: str, words: str) -> None:
        """The words leave every memory that has them, literally; the rest of it stays, under another name."""
        for uri in {match.uri for match in await self._api.grep(user, memories_of(user), sought(words))}:
            text = await self._api.read(user, uri)
            if text is None or words not in text:
                continue
            rest = text.replace(words, FORGOTTEN)
            if rest.replace(FORGOTTEN, "").strip():
                await self._api.write(user, rest_file(user, uri), rest, await self._api.tags(user, uri) or [])
            await self._api.remove(user, uri)

    async def _changes(self, user: str, archive: str) -> list[Change]:
        drawn = await self._api.parsed(user, f"{archive}/memory_diff.json", _Drawn)
        return [] if drawn is None else [*drawn.operations.adds, *drawn.operations.updates]
