"""Hindsight as a memory provider: each owner has a bank, and each log entry is a document in it.

A turn is the document `SESSION/0003`. Nothing is appended and no document holds a whole session, so neither a later
session nor a partial write overwrites anything. Uses plain HTTP; docs/how-to/memory/hindsight.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from everthread.adapters.memory.common.encoding import encode_id, join_ids
from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.common.service_provider import NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool
from everthread.adapters.memory.hindsight.client import HindsightClient, RecalledFact
from everthread.adapters.memory.hindsight.codec import (
    OPENED,
    HindsightDocument,
    common_origin,
    delegation_document,
    fact_origin,
    note_document,
    note_document_id,
    opened_document,
    session_prefix,
    session_tag,
    turn_document,
    turn_id,
)
from everthread.domain.events import Delivery
from everthread.domain.model import FORGOTTEN, SessionRef
from everthread.ports.memory import RecallItem

HINDSIGHT = "hindsight"
DEFAULT_URL = "http://127.0.0.1:8888"
DEFAULT_BANK = "everthread"
FORGET_ROUNDS_MAX = 100
"""The server lists only some of the documents that contain a word, so the search is repeated until it finds none."""

_RECALL, _REFLECT = "hindsight_recall", "hindsight_reflect"


class Hindsight(ServiceProvider[HindsightClient]):
    service = HINDSIGHT
    # The server rejects queries of more than 500 tokens.
    query_chars_max = 500
    _prefix = DEFAULT_BANK
    tools = (
        TextTool(
            _RECALL,
            "Search what was said with this user, and what was learned of them, in all their conversations.",
            "query",
        ),
        TextTool(
            _REFLECT,
            "Ask for an answer that is put together from all that is remembered of this user; takes a while.",
            "query",
        ),
    )

    async def initialize(
        self,
        *,
        address: str = DEFAULT_URL,
        key: str = "",
        bank: str = DEFAULT_BANK,
        profile: str = "",
        **settings: Any,
    ) -> None:
        """Make the client. No request is sent: the server may be up by the first entry."""
        await self.shutdown()
        self._prefix = join_ids(encode_id(bank), encode_id(profile)) if profile else encode_id(bank)
        self._opened = HindsightClient(self.name, JsonHttpClient(self.name, address, key=key), self._sleep)

    # Log entries ------------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        document = turn_document(ref.session_id, int(more.get("turn", delivery.seq)), user, assistant, more.get("at"))
        await self._store(document, ref.owner, delivery)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        child_id = str(more.get("child_session_id", ""))
        document = delegation_document(ref.session_id, delivery.seq, task, result, child_id)
        await self._store(document, ref.owner, delivery)

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        if parent_id:
            await self._store(opened_document(ref.session_id, parent_id), ref.owner, delivery)

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        for number in turns:
            await self._delete(self._bank(ref.owner), turn_id(ref.session_id, number))

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        document = note_document(ref.session_id, note.id, note.version, note.target, note.content, note.at)
        client, bank = self._client, self._bank(ref.owner)
        async with client.lock(bank, document.id):
            before = await client.get(bank, document.id)
            if before is not None and before.version > note.version:
                # Sessions are delivered independently: a newer version from another one came first.
                return
            if not note.content:
                await client.delete(bank, document.id)
                return
            await client.put(bank, document, delivery.replay)
            if before is not None and before.operation != document.signed(bank, delivery.replay).operation:
                await client.delete_operation(bank, before.operation)

    async def _forget_session(self, ref: SessionRef) -> None:
        bank = self._bank(ref.owner)
        await self._client.delete_unfinished(bank, prefix=session_prefix(ref.session_id))
        for document_id in await self._client.document_ids(bank, tag=session_tag(ref.session_id)):
            await self._delete(bank, document_id)

    async def _forget_owner(self, owner: str) -> None:
        await self._client.delete_bank(self._bank(owner))

    async def _forget_note(self, owner: str, note_id: str) -> None:
        await self._delete(self._bank(owner), note_document_id(note_id))

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        bank = self._bank(owner)
        await self._client.delete_unfinished(bank, containing=text)
        for _ in range(FORGET_ROUNDS_MAX):
            ids = await self._client.document_ids(bank, containing=text)
            if not any([await self._remove_text(bank, each, text, delivery) for each in ids]):
                return

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        # The server rejects a query without a word.
        if not any(character.isalnum() for character in query):
            return ()
        response = await self._client.recall(self._bank(ref.owner), query)
        items = [_recall_item(fact, response.sources(fact), rank) for rank, fact in enumerate(response.results)]
        return [item for item in items if item is not None][:limit]

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        if name == _RECALL:
            return await self._search_text(argument, ref)
        return await self._client.reflect(self._bank(ref.owner), argument) or "Nothing is remembered of that."

    # ------------------------------------------------------------------------------------------------------------------

    async def _store(self, document: HindsightDocument, owner: str, delivery: Delivery) -> None:
        if not document.content.strip():
            return
        bank = self._bank(owner)
        async with self._client.lock(bank, document.id):
            await self._client.put(bank, document, delivery.replay)

    async def _delete(self, bank: str, document_id: str) -> None:
        async with self._client.lock(bank, document_id):
            await self._client.delete(bank, document_id)

    async def _remove_text(self, bank: str, document_id: str, text: str, delivery: Delivery) -> bool:
        """Remove a text from a document, or delete the document if nothing else is left. Return whether it changed."""
        client = self._client
        async with client.lock(bank, document_id):
            document = await client.get(bank, document_id)
            if document is None or text not in document.content:
                return False
            remaining = document.without(text)
            if remaining.content.strip() == FORGOTTEN:
                await client.delete(bank, document_id)
            else:
                await client.put(bank, remaining, delivery.replay)
                await client.delete_operation(bank, document.operation)
            return True

    def _bank(self, owner: str) -> str:
        return join_ids(self._prefix, encode_id(owner))


def _recall_item(fact: RecalledFact, sources: Sequence[RecalledFact], rank: int) -> RecallItem | None:
    origin = common_origin([fact_origin(one.document_id or "", one.metadata or {}) for one in sources])
    # The lineage of a session is of no use in a prompt.
    if not fact.text.strip() or origin.kind == OPENED:
        return None
    # The score is the rank: the server's own scores are not comparable between queries.
    return RecallItem(
        fact.text, 1 / (1 + rank), session_id=origin.session_id, turn=origin.turn, at=_seconds(fact.mentioned_at)
    )


def _seconds(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None
