"""Supermemory as a memory provider: each owner has a namespace, and each turn and note is a document in it.

Document ids are derived from ours, so a redelivered entry is the same document. The service queues documents and can
fail to ingest them later, so each close checks all documents of the session. Uses plain HTTP;
docs/how-to/memory/supermemory.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.common.service_provider import NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool
from everthread.adapters.memory.supermemory.client import SupermemoryClient, SupermemoryDocument
from everthread.adapters.memory.supermemory.codec import (
    DocumentDraft,
    delegation_draft,
    is_stored_as,
    missing_drafts,
    namespace,
    note_document_id,
    note_draft,
    recall_items,
    session_drafts,
    turn_draft,
    turn_id,
    without_text,
)
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import Delivery, View
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import RecallItem

SUPERMEMORY = "supermemory"
INGEST_S_MAX = 20.0

_POLL_S = 0.5
_SEARCH, _PROFILE = "supermemory_search", "supermemory_profile"


class Supermemory(ServiceProvider[SupermemoryClient]):
    service = SUPERMEMORY
    tools = (
        TextTool(_SEARCH, "Search what this user said and what was noted, in all their conversations.", "query"),
        TextTool(_PROFILE, "What is known of this user: lasting facts, and what they are busy with."),
    )
    _prefix = ""

    async def initialize(
        self, *, url: str, api_key: str = "", namespace: str = "", profile: str = "main", **settings: Any
    ) -> None:
        """Make the client. No request is sent: the service may be up by the first entry."""
        await self.shutdown()
        self._opened = SupermemoryClient(self.name, JsonHttpClient(self.name, url, key=api_key))
        self._prefix = namespace or f"everthread-{profile}"

    # Log entries ------------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        draft = turn_draft(user, assistant, ref, int(more.get("turn") or delivery.seq), more.get("at"))
        if draft.content:
            await self._put(ref.owner, draft)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._put(ref.owner, delegation_draft(task, result, ref, delivery.seq))

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """Check that every turn was ingested, and send failed documents once more."""
        view: View | None = more.get("view")
        drafts = session_drafts(view, ref) if view is not None else ()
        if not drafts:
            return
        for draft in missing_drafts(drafts, await self._session_documents(ref)):
            await self._put(ref.owner, draft)
        # Documents that are still pending are checked by the next close, so that later entries need not wait.
        if any(document.has_failed for document in await self._wait_ingested(ref.owner, session=ref.session_id)):
            raise Rejected(self.name, "could not ingest all of a session, twice; check its console, then retry")

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        ids = [turn_id(ref.session_id, turn) for turn in turns]
        await self._client.delete(self._namespace(ref.owner), ids)

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        if note.content:
            await self._put(ref.owner, note_draft(note.content, ref, note.id, note.at))
        else:
            await self._forget_note(ref.owner, note.id)

    async def _forget_session(self, ref: SessionRef) -> None:
        ids = [document.id for document in await self._session_documents(ref)]
        await self._client.delete(self._namespace(ref.owner), ids)

    async def _forget_owner(self, owner: str) -> None:
        await self._client.delete_namespace(self._namespace(owner))

    async def _forget_note(self, owner: str, note_id: str) -> None:
        await self._client.delete(self._namespace(owner), [note_document_id(note_id)])

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        documents = await self._wait_ingested(owner, with_content=True)
        for document in documents:
            draft = without_text(text, document)
            if draft is not None:
                await self._client.replace(self._namespace(owner), draft.id, draft.content, draft.metadata)
        # A failed document shows no text and may contain this one; nothing of it can be recalled anyway.
        failed = [document.id for document in documents if document.has_failed]
        await self._client.delete(self._namespace(owner), failed)
        if any(document.is_pending for document in documents):
            raise Unavailable(self.name, "some documents are not ingested yet and could not be searched")

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return recall_items(await self._client.search(self._namespace(ref.owner), query, limit), limit)

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        if name == _PROFILE:
            return "\n".join(await self._client.profile(self._namespace(ref.owner))) or "Nothing is known yet."
        return await self._search_text(argument, ref)

    # ------------------------------------------------------------------------------------------------------------------

    async def _put(self, owner: str, draft: DocumentDraft) -> None:
        """Store a document. An existing one is looked up first: `add` would append to it."""
        where = self._namespace(owner)
        stored = await self._client.get(where, draft.id)
        if stored is None:
            await self._client.add(where, draft.id, draft.content, draft.metadata)
        elif stored.has_failed or not is_stored_as(draft, stored):
            await self._client.replace(where, draft.id, draft.content, draft.metadata)

    async def _session_documents(self, ref: SessionRef) -> list[SupermemoryDocument]:
        return await self._client.documents(self._namespace(ref.owner), session=ref.session_id)

    async def _wait_ingested(
        self, owner: str, *, with_content: bool = False, **metadata: str
    ) -> list[SupermemoryDocument]:
        """Return the documents once none is pending, or after `INGEST_S_MAX`."""
        waited_s = 0.0
        while True:
            documents = await self._client.documents(self._namespace(owner), with_content=with_content, **metadata)
            if waited_s >= INGEST_S_MAX or not any(document.is_pending for document in documents):
                return documents
            await self._sleep(_POLL_S)
            waited_s += _POLL_S

    def _namespace(self, owner: str) -> str:
        return namespace(self._prefix, owner)
