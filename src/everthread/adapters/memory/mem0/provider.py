"""Mem0 as a memory provider: its library in a child process, or its cloud (mode `platform`).

An owner is a user of Mem0, a session is a run. With `infer`, a model extracts facts from each turn. The metadata name
the log entry, so a redelivered entry is stored once and a recalled memory leads back to it.
See docs/how-to/memory/mem0.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everthread.adapters.memory.common.http import Sleep
from everthread.adapters.memory.common.service_provider import RESULTS_MAX, NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool, bullet_list
from everthread.adapters.memory.mem0.codec import (
    NOTE,
    OPENED,
    Mem0Client,
    Mem0Entry,
    delegation_entry,
    note_entry,
    note_version,
    opened_entry,
    recall_items,
    turn_entry,
    turn_key,
)
from everthread.domain.errors import BadConfig
from everthread.domain.events import Delivery
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import RecallItem

MEM0 = "mem0"
PROFILE_MAX = 50

_SEARCH, _PROFILE = "mem0_search", "mem0_profile"


class Mem0(ServiceProvider[Mem0Client]):
    service = MEM0
    tools = (
        TextTool(_SEARCH, "Search what is remembered of this user, from all their conversations.", "query"),
        TextTool(_PROFILE, "What is remembered of this user, without a question: up to 50 facts and notes."),
    )
    _infer = True

    async def initialize(
        self, *, mode: str = "library", infer: bool = True, profile: str = "main", **settings: Any
    ) -> None:
        """Make the client. Neither the cloud nor a model is asked: they may be up by the first entry."""
        await self.shutdown()
        self._infer = infer
        if mode == "platform":
            self._opened = _cloud_client(self.name, profile, self._sleep, **settings)
        elif mode == "library":
            self._opened = _local_client(self.name, **settings)
        else:
            raise BadConfig(f"{self.name}: unknown mode {mode[:40]!r}; use library or platform")
        await self._opened.start()

    # Log entries ------------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        turn = int(more.get("turn") or delivery.seq)
        entry = turn_entry(
            ref.session_id, turn, user, assistant, more.get("at"), infer=self._infer, attempt=delivery.attempt
        )
        await self._add(ref, entry)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._add(ref, delegation_entry(ref.session_id, delivery.seq, task, result))

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        await self._client.close(ref.owner, ref.session_id)

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        if parent_id:
            await self._add(ref, opened_entry(ref.session_id, parent_id))

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        for turn in turns:
            await self._remove(ref.owner, session=ref.session_id, entry=turn_key(turn))

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        entry = note_entry(ref.session_id, note.id, note.version, note.content, note.at)
        before = await self._client.memories(ref.owner, RESULTS_MAX, kind=NOTE, note=note.id)
        if any(note_version(memory) > note.version for memory in before):
            # Sessions are delivered independently: a newer version from another one came first.
            return
        await self._add(ref, entry)
        old = [memory.id for memory in before if not note.content or memory.about.get("entry") != entry.key]
        await self._client.remove(ref.owner, old)

    async def _forget_session(self, ref: SessionRef) -> None:
        await self._client.forget_session(ref.owner, ref.session_id)

    async def _forget_owner(self, owner: str) -> None:
        await self._client.forget_owner(owner)

    async def _forget_note(self, owner: str, note_id: str) -> None:
        await self._remove(owner, kind=NOTE, note=note_id)

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        await self._client.forget_text(owner, text)

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return recall_items(await self._client.search(ref.owner, query, limit), limit)

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        if name == _PROFILE:
            memories = await self._client.memories(ref.owner, PROFILE_MAX)
            return bullet_list((one.memory for one in memories if one.kind != OPENED), "Nothing is known yet.")
        return await self._search_text(argument, ref)

    # ------------------------------------------------------------------------------------------------------------------

    async def _add(self, ref: SessionRef, entry: Mem0Entry) -> None:
        if entry.messages:
            await self._client.add(ref.owner, entry)

    async def _remove(self, owner: str, **about: str | int) -> None:
        while memories := await self._client.memories(owner, RESULTS_MAX, **about):
            await self._client.remove(owner, [memory.id for memory in memories])


# Each client is imported only by those who use it.


def _cloud_client(
    provider: str, profile: str, sleep: Sleep, *, url: str, api_key: str = "", **settings: Any
) -> Mem0Client:
    from everthread.adapters.memory.common.http import JsonHttpClient  # noqa: PLC0415
    from everthread.adapters.memory.mem0.cloud_client import Mem0CloudClient  # noqa: PLC0415

    if not api_key:
        raise BadConfig(f"{provider}: mode platform needs a key; put MEM0_API_KEY=... into the home's .env")
    http = JsonHttpClient(provider, url, key=api_key, scheme="Token")
    return Mem0CloudClient(provider, http, f"everthread-{profile}", sleep)


def _local_client(
    provider: str,
    *,
    folder: Path | str,
    model: str = "",
    model_url: str = "",
    model_key: str = "",
    embedder: str = "",
    embedder_url: str = "",
    embedder_key: str = "",
    python: str = "",
    **settings: Any,
) -> Mem0Client:
    from everthread.adapters.memory.mem0.local_client import (  # noqa: PLC0415
        REQUEST_S_MAX,
        ChildSettings,
        Mem0LocalClient,
        ModelEndpoint,
    )

    llm = ModelEndpoint(model, model_url, model_key)
    # The model's key goes to no other endpoint.
    embeddings = ModelEndpoint(embedder, embedder_url or model_url, embedder_key if embedder_url else model_key)
    return Mem0LocalClient(provider, ChildSettings(str(folder), llm, embeddings, REQUEST_S_MAX), python)
