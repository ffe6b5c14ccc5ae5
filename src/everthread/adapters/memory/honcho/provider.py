"""Honcho as a memory provider: each owner is a peer, and Honcho draws conclusions about them.

A profile is a workspace, an owner and the agent that talks to them are two peers, a session is a session, the two sides
of a turn are messages, and a note is a conclusion. Uses plain HTTP; docs/how-to/memory/honcho.md says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from everthread.adapters.memory.common.encoding import encode_id, split_text
from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.common.service_provider import NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool
from everthread.adapters.memory.honcho.client import HonchoClient
from everthread.adapters.memory.honcho.codec import (
    CONTENT_CHARS_MAX,
    agent_peer,
    entry_messages,
    recall_items,
    user_peer,
)
from everthread.adapters.memory.honcho.sessions import HonchoSessions
from everthread.domain.events import Delivery
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import RecallItem

HONCHO = "honcho"

_SEARCH, _ASK, _PROFILE = "honcho_search", "honcho_ask", "honcho_profile"


class Honcho(ServiceProvider[HonchoSessions]):
    service = HONCHO
    tools = (
        TextTool(_SEARCH, "Search what this user said and what is known of them, in all their conversations.", "query"),
        TextTool(
            _ASK, "Ask what is known of this user, as a question in plain words; takes a few seconds.", "question"
        ),
        TextTool(_PROFILE, "The most important facts about this user, in a few lines."),
    )

    async def initialize(
        self, *, url: str, api_key: str = "", workspace: str = "", profile: str = "main", **settings: Any
    ) -> None:
        """Make the client. No request is sent: the server may be up by the first entry."""
        await self.shutdown()
        http = JsonHttpClient(self.name, url, key=api_key)
        api = HonchoClient(self.name, http, encode_id(workspace or f"everthread-{profile}"))
        self._opened = HonchoSessions(self.name, api, self._sleep)

    # Log entries ------------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = ((user_peer(ref.owner), user), (agent_peer(ref.owner), assistant))
        messages = entry_messages(
            sides, ref=ref, seq=delivery.seq, kind="turn", at=more.get("at"), turn=more.get("turn")
        )
        async with self._client.lock(ref.session_id):
            await self._client.append(ref, messages)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = ((agent_peer(ref.owner), f"Handed over: {task}"), (agent_peer(ref.owner), f"Came back: {result}"))
        messages = entry_messages(sides, ref=ref, seq=delivery.seq, kind="delegation", at=None)
        async with self._client.lock(ref.session_id):
            await self._client.append(ref, messages)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """Record how far the session is complete. Honcho has no commit: earlier entries are stored already."""
        async with self._client.lock(ref.session_id):
            await self._client.close(ref, int(more.get("through_seq", 0)), tuple(more.get("missing", ())))

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        async with self._client.lock(ref.session_id):
            await self._client.open(ref, parent_id)

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        async with self._client.lock(ref.session_id):
            await self._client.rewind(ref, turns)

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        # The note has a lock too: two sessions that write it at once would each delete the other's text.
        async with self._client.lock(ref.session_id), self._client.lock(f"note/{note.id}"):
            await self._client.write_note(ref, note.id, split_text(note.content, CONTENT_CHARS_MAX))

    async def _forget_session(self, ref: SessionRef) -> None:
        await self._client.forget_session(ref.session_id)

    async def _forget_owner(self, owner: str) -> None:
        await self._client.forget_owner(owner)

    async def _forget_note(self, owner: str, note_id: str) -> None:
        await self._client.forget_note(owner, note_id)

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        await self._client.forget_text(owner, text)

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        api, user = self._client.api, user_peer(ref.owner)
        try:
            async with asyncio.TaskGroup() as tasks:
                conclusions = tasks.create_task(api.search_conclusions(query, user, limit))
                messages = tasks.create_task(api.search_messages(query, (user, agent_peer(ref.owner)), limit))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return recall_items(conclusions.result(), messages.result(), ref.owner, limit)

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        if name == _PROFILE:
            return "\n".join(await self._client.api.card(user_peer(ref.owner))) or "Nothing is known yet."
        if name == _SEARCH:
            return await self._search_text(argument, ref)
        return await self._client.api.chat(user_peer(ref.owner), argument) or "Nothing is known of that."
