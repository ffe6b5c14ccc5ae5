"""Our people, sessions and turns in Supermemory's namespaces and documents, and back. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from everthread.adapters.memory.common.encoding import encoded, named
from everthread.adapters.memory.supermemory.client import Document, Result
from everthread.domain.events import View
from everthread.domain.model import FORGOTTEN, SessionRef
from everthread.ports.memory import RecallItem

_NAME_CHARS_MAX = 42
"""Ids may have 100 characters, and have two names in them."""


class Page(Struct, frozen=True):
    """A document as it should be there."""

    id: str
    content: str
    metadata: dict[str, Any]


def space(prefix: str, owner: str) -> str:
    """Everybody has a namespace of their own."""
    return named(encoded(prefix, _NAME_CHARS_MAX), encoded(owner, _NAME_CHARS_MAX))


def turn_page(user: str, assistant: str, ref: SessionRef, turn: int, at: float | None) -> Page:
    # "user:" in front also keeps an address that somebody says from being taken for a page to fetch.
    sides = (("user", user), ("assistant", assistant))
    content = "\n".join(f"{who}: {text}" for who, text in sides if text.strip())
    return _page(turn_id(ref.session_id, turn), content, ref, "turn", turn=turn, at=at)


def turn_id(session_id: str, turn: int) -> str:
    return named(encoded(session_id, _NAME_CHARS_MAX), f"t{turn:06}")


def delegation_page(task: str, result: str, ref: SessionRef, seq: int) -> Page:
    id = named(encoded(ref.session_id, _NAME_CHARS_MAX), f"d{seq:06}")
    return _page(id, f"handed over: {task}\ncame back: {result}", ref, "delegation")


def note_page(content: str, ref: SessionRef, note_id: str, at: float | None) -> Page:
    return _page(note_page_id(note_id), f"noted: {content}", ref, "note", at=at)


def note_page_id(note_id: str) -> str:
    return named("note", encoded(note_id, _NAME_CHARS_MAX))


def pages_of(view: View, ref: SessionRef) -> tuple[Page, ...]:
    """What a session's own turns should be there as; those of a parent are at the parent's."""
    pages = (
        turn_page(turn.user_text, turn.assistant_text, ref, turn.number, turn.at)
        for turn in view.turns
        if not turn.inherited
    )
    return tuple(page for page in pages if page.content)


def is_same(page: Page, there: Document) -> bool:
    """Its text may not be shown yet, so its digest says."""
    return there.metadata.get("digest") == page.metadata["digest"]


def lacking(pages: Iterable[Page], there: Iterable[Document]) -> tuple[Page, ...]:
    """Those that are not there as they should be, or could not be taken in."""
    held = {document.id: document for document in there}
    return tuple(
        page for page in pages if page.id not in held or held[page.id].has_failed or not is_same(page, held[page.id])
    )


def without(fact: str, document: Document) -> Page | None:
    """The document without the words of a fact; None if it has none of them."""
    if document.content is None or fact not in document.content:
        return None
    content = document.content.replace(fact, FORGOTTEN)
    return Page(document.id, content, {**document.metadata, "digest": _digest(content)})


def recalled(results: Sequence[Result], limit: int) -> tuple[RecallItem, ...]:
    return tuple(_item(result) for result in results[:limit] if result.text.strip())


def _item(result: Result) -> RecallItem:
    session, turn, at = (result.metadata.get(name) for name in ("session", "turn", "at"))
    return RecallItem(
        result.text,
        result.similarity,
        session_id=session if isinstance(session, str) else "",
        # Numbers may come back as floating ones.
        turn=int(turn) if isinstance(turn, int | float) else None,
        at=float(at) if isinstance(at, int | float) else None,
    )


def _page(id: str, content: str, ref: SessionRef, kind: str, **more: float | None) -> Page:
    known = {name: value for name, value in more.items() if value is not None}
    return Page(id, content, {"session": ref.session_id, "kind": kind, "digest": _digest(content), **known})


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
