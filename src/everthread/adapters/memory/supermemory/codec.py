"""Our owners, sessions and turns as namespaces and documents of Supermemory, and back. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from everthread.adapters.memory.common.encoding import encode_id, join_ids, recall_item
from everthread.adapters.memory.supermemory.client import SearchResult, SupermemoryDocument
from everthread.domain.events import View
from everthread.domain.model import FORGOTTEN, SessionRef
from everthread.ports.memory import RecallItem

_NAME_CHARS_MAX = 42
"""An id may have 100 characters, and joins two names."""


class DocumentDraft(Struct, frozen=True):
    """A document to be stored."""

    id: str
    content: str
    metadata: dict[str, Any]


def namespace(prefix: str, owner: str) -> str:
    """Return the namespace of an owner."""
    return join_ids(encode_id(prefix, _NAME_CHARS_MAX), encode_id(owner, _NAME_CHARS_MAX))


def turn_draft(user: str, assistant: str, ref: SessionRef, turn: int, at: float | None) -> DocumentDraft:
    # "user:" in front also keeps the service from fetching a message that consists of a URL.
    sides = (("user", user), ("assistant", assistant))
    content = "\n".join(f"{role}: {text}" for role, text in sides if text.strip())
    return _draft(turn_id(ref.session_id, turn), content, ref, "turn", turn=turn, at=at)


def turn_id(session_id: str, turn: int) -> str:
    return join_ids(encode_id(session_id, _NAME_CHARS_MAX), f"t{turn:06}")


def delegation_draft(task: str, result: str, ref: SessionRef, seq: int) -> DocumentDraft:
    id = join_ids(encode_id(ref.session_id, _NAME_CHARS_MAX), f"d{seq:06}")
    return _draft(id, f"handed over: {task}\ncame back: {result}", ref, "delegation")


def note_draft(content: str, ref: SessionRef, note_id: str, at: float | None) -> DocumentDraft:
    return _draft(note_document_id(note_id), f"noted: {content}", ref, "note", at=at)


def note_document_id(note_id: str) -> str:
    return join_ids("note", encode_id(note_id, _NAME_CHARS_MAX))


def session_drafts(view: View, ref: SessionRef) -> tuple[DocumentDraft, ...]:
    """Return the documents of a session's own turns. Inherited turns are stored with the parent."""
    drafts = (
        turn_draft(turn.user_text, turn.assistant_text, ref, turn.number, turn.at)
        for turn in view.turns
        if not turn.inherited
    )
    return tuple(draft for draft in drafts if draft.content)


def is_stored_as(draft: DocumentDraft, stored: SupermemoryDocument) -> bool:
    """Compare by digest: the service may not return the text yet."""
    return stored.metadata.get("digest") == draft.metadata["digest"]


def missing_drafts(drafts: Iterable[DocumentDraft], stored: Iterable[SupermemoryDocument]) -> tuple[DocumentDraft, ...]:
    """Return the documents that are absent, differ, or could not be ingested."""
    by_id = {document.id: document for document in stored}
    return tuple(
        draft
        for draft in drafts
        if draft.id not in by_id or by_id[draft.id].has_failed or not is_stored_as(draft, by_id[draft.id])
    )


def without_text(text: str, document: SupermemoryDocument) -> DocumentDraft | None:
    """Remove a text from a document; None if the document does not contain it."""
    if document.content is None or text not in document.content:
        return None
    content = document.content.replace(text, FORGOTTEN)
    return DocumentDraft(document.id, content, {**document.metadata, "digest": _digest(content)})


def recall_items(results: Sequence[SearchResult], limit: int) -> tuple[RecallItem, ...]:
    shown = [result for result in results[:limit] if result.text.strip()]
    return tuple(recall_item(result.text, result.similarity, result.metadata) for result in shown)


def _draft(id: str, content: str, ref: SessionRef, kind: str, **more: float | None) -> DocumentDraft:
    known = {name: value for name, value in more.items() if value is not None}
    return DocumentDraft(id, content, {"session": ref.session_id, "kind": kind, "digest": _digest(content), **known})


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
