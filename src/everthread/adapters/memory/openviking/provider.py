"""OpenViking as a memory provider: each owner is a user, a session is a session, and a close is a commit.

The server extracts memories from committed messages in the background. A close counts as delivered only when that is
done; until then the messages can be appended again. Uses plain HTTP; docs/how-to/memory/openviking.md says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everthread.adapters.memory.common.encoding import encode_id, join_ids
from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.common.service_provider import TOOL_RESULTS, NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool, bullet_list
from everthread.adapters.memory.openviking.client import OpenVikingClient, VikingMemory
from everthread.adapters.memory.openviking.codec import (
    TURN,
    WORK,
    entry_messages,
    memories_uri,
    message_grep_pattern,
    message_text,
    parse_origin,
    sessions_uri,
    user_name,
)
from everthread.adapters.memory.openviking.sessions import OpenVikingSessions
from everthread.domain.errors import BadConfig, ToolFailed
from everthread.domain.events import Delivery, View
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import RecallItem

OPENVIKING = "openviking"
DEFAULT_URL = "http://127.0.0.1:1933"
DEFAULT_ACCOUNT = "everthread"
LOOKED_UP_MAX = 20

_SEARCH, _READ, _LOOK_UP = "openviking_search", "openviking_read", "openviking_look_up"


class OpenViking(ServiceProvider[OpenVikingSessions]):
    service = OPENVIKING
    tools = (
        TextTool(_SEARCH, "Search by meaning what is remembered of this user, from all their conversations.", "query"),
        TextTool(
            _READ,
            "Read one memory in full, by the address that openviking_search has given for it.",
            "uri",
            "viking://…",
        ),
        TextTool(_LOOK_UP, "Find exact words in what was said with this user, also in the last minutes.", "words"),
    )

    async def initialize(
        self,
        *,
        url: str = DEFAULT_URL,
        api_key: str = "",
        account: str = DEFAULT_ACCOUNT,
        profile: str = "",
        **settings: Any,
    ) -> None:
        """Make the client. No request is sent: the server may be up by the first entry."""
        await self.shutdown()
        if not re.match(r"[A-Za-z0-9]", account):
            raise BadConfig(f"{self.name}: the account must begin with a letter or a digit; change it in the settings")
        account = join_ids(encode_id(account), encode_id(profile)) if profile else encode_id(account)
        api = OpenVikingClient(self.name, JsonHttpClient(self.name, url, key=api_key), account)
        self._opened = OpenVikingSessions(self.name, api, self._sleep)

    # Log entries ------------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        sides = (("user", user), ("assistant", assistant))
        number = int(more.get("turn", delivery.seq))
        messages = entry_messages(sides, seq=delivery.seq, kind=TURN, turn=number, at=more.get("at"))
        await self._client.append(user_name(ref.owner), ref.session_id, messages)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        text = f"Handed over: {task}\nCame back: {result}"
        messages = entry_messages([("assistant", text)], seq=delivery.seq, kind=WORK, turn=0, at=None)
        await self._client.append(user_name(ref.owner), ref.session_id, messages)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        view: View | None = more.get("view")
        visible = None if view is None else {turn.number for turn in view.turns if turn.session_id == ref.session_id}
        missing = tuple(more.get("missing", ()))
        await self._client.close(user_name(ref.owner), ref.session_id, delivery.seq, missing, visible)

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        if parent_id:
            await self._client.set_parent(user_name(ref.owner), ref.session_id, parent_id)

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        await self._client.rewind(user_name(ref.owner), ref.session_id, turns)

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        client, user = self._client, user_name(ref.owner)
        async with client.lock(user, f"note {note.id}"):
            await client.memories.write_note(user, ref.session_id, note.id, note.version, note.content)

    async def _forget_session(self, ref: SessionRef) -> None:
        await self._client.forget_session(user_name(ref.owner), ref.session_id)

    async def _forget_owner(self, owner: str) -> None:
        await self._client.forget_user(user_name(owner))

    async def _forget_note(self, owner: str, note_id: str) -> None:
        await self._client.memories.forget_note(user_name(owner), note_id)

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        await self._client.forget_text(user_name(owner), text)

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return [_recall_item(memory) for memory in await self._search(query, ref, limit)]

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        user = user_name(ref.owner)
        if name == _SEARCH:
            memories = await self._search(argument, ref, TOOL_RESULTS)
            return bullet_list(f"{memory.text}\n  ({memory.uri})" for memory in memories)
        if name == _LOOK_UP:
            return bullet_list(await self._find_messages(user, argument), "Nobody has said that.")
        if not argument.startswith(f"{memories_uri(user)}/") or "/.." in argument:
            raise ToolFailed("not the address of a memory; use one that openviking_search has returned")
        return await self._client.api.read(user, argument) or "There is no such memory any more."

    # ------------------------------------------------------------------------------------------------------------------

    async def _search(self, query: str, ref: SessionRef, limit: int) -> list[VikingMemory]:
        memories = await self._client.api.search(user_name(ref.owner), query, limit)
        return [memory for memory in memories if memory.text.strip()][:limit]

    async def _find_messages(self, user: str, words: str) -> list[str]:
        matches = await self._client.api.grep(user, sessions_uri(user), message_grep_pattern(words))
        texts = (message_text(match.content) for match in matches if match.uri.endswith("/messages.jsonl"))
        return [*dict.fromkeys(text for text in texts if text)][:LOOKED_UP_MAX]


def _recall_item(memory: VikingMemory) -> RecallItem:
    session_id, turn = parse_origin(memory.tags)
    return RecallItem(memory.text, memory.score, session_id=session_id, turn=turn)
