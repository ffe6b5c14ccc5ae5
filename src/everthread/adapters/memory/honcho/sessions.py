"""Our sessions and notes as sessions of Honcho.

The name of a deleted session can't be used again, and deletion takes a while during which writes to the session are
lost. So a session that is written again gets a numbered name, and deleting waits until the server is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from everthread.adapters.memory.common.http import ResourceNotFound, Sleep
from everthread.adapters.memory.common.locks import KeyedLocks
from everthread.adapters.memory.honcho.client import HonchoClient, HonchoMessage, HonchoSession, NewMessage
from everthread.adapters.memory.honcho.codec import (
    missing_messages,
    note_name,
    numbered_name,
    session_name,
    session_peers,
    undone_metadata,
    unmarked_duplicates,
    updated_metadata,
    user_peer,
    without_text,
)
from everthread.domain.errors import Unavailable
from everthread.domain.model import SessionRef

CACHED_MAX = 1024
"""Sessions kept in the cache, so that not every entry has to look them up."""
ROUNDS_MAX = 1000
DELETE_S_MAX = 20.0
_POLL_S = 0.1


class HonchoSessions:
    def __init__(self, provider: str, api: HonchoClient, sleep: Sleep) -> None:
        self.api = api
        self._provider = provider
        self._sleep = sleep
        # By name. Only a hint: a session that was deleted meanwhile is looked up again.
        self._cache: dict[str, HonchoSession] = {}
        self._locks = KeyedLocks()

    async def aclose(self) -> None:
        await self.api.aclose()

    async def check(self) -> None:
        await self.api.check()

    def lock(self, session_id: str) -> AbstractAsyncContextManager[object]:
        """Allow one writer of a session at a time."""
        return self._locks.lock(session_id)

    async def open(self, ref: SessionRef, parent_id: str = "") -> HonchoSession:
        return await self._get(session_name(ref.session_id), ref, parent=parent_id)

    async def append(self, ref: SessionRef, messages: Sequence[NewMessage]) -> None:
        """Append the messages that are missing. Appending is not idempotent, so stored ones are listed first."""
        if not messages:
            return
        session, stored = await self._messages(ref, seq=messages[0].metadata["seq"])
        if missing := missing_messages(messages, stored):
            await self.api.append(session.id, missing)

    async def rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        """Mark the messages of these turns as undone: single messages can't be deleted."""
        for turn in turns:
            _, stored = await self._messages(ref, turn=turn)
            for message in stored:
                await self.api.set_message_metadata(message, undone_metadata(message))

    async def close(self, ref: SessionRef, through_seq: int, missing: Sequence[int]) -> None:
        """Record the log position up to which the session is complete, and mark duplicates as undone.

        A request that timed out can take effect after `append` has listed the messages, so duplicates do occur.
        """
        session, stored = await self._messages(ref)
        for message in unmarked_duplicates(stored):
            await self.api.set_message_metadata(message, undone_metadata(message))
        closed = {"closed_through": through_seq, "missing": list(missing)}
        await self._set_metadata(session_name(ref.session_id), session, {**session.metadata, **closed})

    # Notes ------------------------------------------------------------------------------------------------------------

    async def write_note(self, ref: SessionRef, note_id: str, pieces: Sequence[str]) -> None:
        """Store a note as conclusions, and delete those of its earlier versions. No pieces: the note was removed."""
        session = await self._get(note_name(ref.session_id, note_id), ref, note=note_id)
        stored = [one.content for one in await self.api.conclusions(session_id=session.id)]
        if missing := [piece for piece in pieces if piece not in stored]:
            await self.api.add_conclusions(missing, user_peer(ref.owner), session.id)
        await self._delete_conclusions(session, keep=pieces)
        await self.forget_note(ref.owner, note_id, keep=session.id)

    async def forget_note(self, owner: str, note_id: str, keep: str = "") -> None:
        """Delete the conclusions of a note in every session but `keep`."""
        for session in await self.api.sessions(owner=owner, note=note_id):
            if session.id != keep:
                await self._delete_conclusions(session)

    async def _delete_conclusions(self, session: HonchoSession, keep: Sequence[str] = ()) -> None:
        for conclusion in await self.api.conclusions(session_id=session.id):
            if conclusion.content not in keep:
                await self.api.delete_conclusion(conclusion.id)

    # Forgetting -------------------------------------------------------------------------------------------------------

    async def forget_session(self, session_id: str) -> None:
        async with self.lock(session_id):
            await self._delete(await self.api.sessions(session=session_id))

    async def forget_owner(self, owner: str) -> None:
        await self._delete(await self.api.sessions(owner=owner))
        # Conclusions drawn from several sessions belong to none of them.
        for conclusion in await self.api.conclusions(observed_id=user_peer(owner)):
            await self.api.delete_conclusion(conclusion.id)
        with suppress(ResourceNotFound):
            await self.api.clear_card(user_peer(owner))

    async def forget_text(self, owner: str, text: str) -> None:
        """Copy sessions that contain the text without it, then delete them: single messages can't be deleted."""
        for session in await self.api.sessions(owner=owner):
            session_id = str(session.metadata.get("session", ""))
            if "note" not in session.metadata:
                async with self.lock(session_id):
                    await self._rewrite_without(session, session_id, owner, text)
        for conclusion in await self.api.conclusions(observed_id=user_peer(owner)):
            if text in conclusion.content:
                await self.api.delete_conclusion(conclusion.id)

    async def _rewrite_without(self, session: HonchoSession, session_id: str, owner: str, text: str) -> None:
        try:
            messages = await self.api.messages(session.id)
        except ResourceNotFound:
            return
        if not any(text in message.content for message in messages):
            return
        name = session_name(session_id)
        current = next((round for round in range(ROUNDS_MAX) if numbered_name(name, round) == session.id), 0)
        new = await self._first_undeleted(name, owner, current + 1)
        await self.api.set_session_metadata(new.id, session.metadata)
        stored = await self.api.messages(new.id)
        if missing := missing_messages([without_text(message, text) for message in messages], stored):
            await self.api.append(new.id, missing)
        await self._delete([session])

    # ------------------------------------------------------------------------------------------------------------------

    async def _messages(self, ref: SessionRef, **metadata: int) -> tuple[HonchoSession, list[HonchoMessage]]:
        """Return a session and its messages with these metadata."""
        session = await self.open(ref)
        try:
            return session, await self.api.messages(session.id, **metadata)
        except ResourceNotFound:
            # Deleted since it was cached.
            self._cache.pop(session_name(ref.session_id), None)
            session = await self.open(ref)
            return session, await self.api.messages(session.id, **metadata)

    async def _get(self, name: str, ref: SessionRef, **more: str) -> HonchoSession:
        """Return the session of a name that is not deleted, created if necessary, with up-to-date metadata."""
        if name not in self._cache:
            while len(self._cache) >= CACHED_MAX:
                self._cache.pop(next(iter(self._cache)))
            self._cache[name] = await self._first_undeleted(name, ref.owner, 0)
        session = self._cache[name]
        metadata = updated_metadata(session, ref, **more)
        return session if metadata is None else await self._set_metadata(name, session, metadata)

    async def _set_metadata(self, name: str, session: HonchoSession, metadata: dict[str, Any]) -> HonchoSession:
        await self.api.set_session_metadata(session.id, metadata)
        self._cache[name] = HonchoSession(session.id, metadata)
        return self._cache[name]

    async def _first_undeleted(self, name: str, owner: str, round: int) -> HonchoSession:
        while round < ROUNDS_MAX:
            try:
                return await self.api.get_or_create_session(numbered_name(name, round), session_peers(owner))
            except ResourceNotFound:
                round += 1
        raise Unavailable(self._provider, f"a session was deleted {ROUNDS_MAX} times")

    async def _delete(self, sessions: Sequence[HonchoSession]) -> None:
        """Delete sessions and wait until they are deleted: until then, writes to them would be lost."""
        waited_s = 0.0
        ids = {session.id for session in sessions}
        self._cache = {name: session for name, session in self._cache.items() if session.id not in ids}
        for session in sessions:
            while await self._request_deletion(session):
                if waited_s >= DELETE_S_MAX:
                    raise Unavailable(
                        self._provider, f"a deletion is not done after {DELETE_S_MAX:g} s", retry_after_s=30
                    )
                await self._sleep(_POLL_S)
                waited_s += _POLL_S

    async def _request_deletion(self, session: HonchoSession) -> bool:
        """Return whether the session still existed."""
        try:
            await self.api.delete_session(session.id)
        except ResourceNotFound:
            return False
        return True
