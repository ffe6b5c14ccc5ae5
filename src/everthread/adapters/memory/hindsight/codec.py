"""Log entries as Hindsight documents, one each. The id is derived from the entry, so none overwrites another."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.model import FORGOTTEN

TURN, NOTE, WORK, OPENED = "turn", "note", "work", "opened"
_NAMESPACE = uuid.UUID("6c1a1c0e-5f0b-5d0a-9b43-0d1f6a2b7e55")
_OPERATION, _KIND, _SESSION, _TURN, _VERSION, _PARENT = "operation", "kind", "session", "turn", "version", "parent"


class HindsightDocument(Struct, frozen=True):
    """`metadata` is returned with recalled facts; documents are listed by `tags`."""

    id: str
    content: str
    metadata: Mapping[str, str]
    tags: tuple[str, ...]
    context: str = ""
    at: float | None = None

    @property
    def kind(self) -> str:
        return self.metadata.get(_KIND, "")

    @property
    def operation(self) -> str:
        """Id of the operation that ingests the document. The server keeps the text with it too."""
        return self.metadata.get(_OPERATION, "")

    @property
    def version(self) -> int:
        return parse_number(self.metadata.get(_VERSION)) or 0

    def signed(self, bank: str, replay: int) -> HindsightDocument:
        """Add the operation id: a hash of the content, so that the server ignores a repetition and no other text.

        The bank is part of the hash because operation ids are global to the server.
        """
        metadata = {name: value for name, value in self.metadata.items() if name != _OPERATION}
        hashed = msgspec.json.encode((bank, self.id, self.content, self.tags, sorted(metadata.items()), replay))
        operation = str(uuid.uuid5(_NAMESPACE, hashlib.sha256(hashed).hexdigest()))
        return replace(self, metadata={**metadata, _OPERATION: operation})

    def without(self, words: str) -> HindsightDocument:
        return replace(self, content=self.content.replace(words, FORGOTTEN))

    def item(self) -> dict[str, object]:
        """Return the document in the server's format. `replace` is safe: no other entry has this id."""
        item: dict[str, object] = {
            "content": self.content,
            "document_id": self.id,
            "update_mode": "replace",
            "metadata": self.metadata,
            "tags": self.tags,
            # Observations drawn from several sessions belong to the owner, not to one session.
            "observation_scopes": "shared",
        }
        if self.context:
            item["context"] = self.context
        if self.at is not None:
            item["timestamp"] = datetime.fromtimestamp(self.at, UTC).isoformat()
        return item


class FactOrigin(Struct, frozen=True):
    """The log entry that a recalled fact comes from."""

    kind: str = ""
    session_id: str = ""
    turn: int | None = None


def turn_document(session_id: str, number: int, user: str, assistant: str, at: float | None) -> HindsightDocument:
    content = "\n".join(f"{role}: {text}" for role, text in (("user", user), ("assistant", assistant)) if text.strip())
    metadata = {_KIND: TURN, _SESSION: session_id, _TURN: str(number)}
    context = f"turn {number} of a conversation between the user and their assistant"
    tags = (session_tag(session_id), TURN)
    return HindsightDocument(turn_id(session_id, number), _storable(content), metadata, tags, context, at)


def delegation_document(session_id: str, seq: int, task: str, result: str, child_id: str) -> HindsightDocument:
    metadata = {_KIND: WORK, _SESSION: session_id} | ({"child": child_id} if child_id else {})
    content = _storable(f"task: {task}\nresult: {result}")
    id = _document_id(session_id, f"work-{seq:04d}")
    return HindsightDocument(id, content, metadata, (session_tag(session_id), WORK), "handed-over work")


def opened_document(session_id: str, parent_id: str) -> HindsightDocument:
    """Record the parent of a session. A session without one has no such document."""
    metadata = {_KIND: OPENED, _SESSION: session_id, _PARENT: parent_id}
    content = f"Conversation {session_id} continues conversation {parent_id}."
    id = _document_id(session_id, OPENED)
    return HindsightDocument(id, content, metadata, (session_tag(session_id), OPENED), "lineage")


def note_document(
    session_id: str, note_id: str, version: int, target: str, content: str, at: float | None
) -> HindsightDocument:
    metadata = {_KIND: NOTE, _SESSION: session_id, NOTE: note_id, _VERSION: str(version)}
    tags = (session_tag(session_id), note_tag(note_id), NOTE)
    id = note_document_id(note_id)
    return HindsightDocument(id, _storable(content), metadata, tags, f"a note about the {target}", at)


def session_prefix(session_id: str) -> str:
    """Return the prefix of the ids of a session's documents, notes excepted."""
    return _document_id(session_id, "")


def turn_id(session_id: str, number: int) -> str:
    return _document_id(session_id, f"{number:04d}")


def note_document_id(note_id: str) -> str:
    return f"{NOTE}/{quote(note_id, safe='')}"


def session_tag(session_id: str) -> str:
    return f"session:{session_id}"


def note_tag(note_id: str) -> str:
    return f"note:{note_id}"


def fact_origin(document_id: str, metadata: Mapping[str, str]) -> FactOrigin:
    """Read the origin from the metadata or, without them, from the id."""
    if _KIND in metadata:
        return FactOrigin(metadata[_KIND], metadata.get(_SESSION, ""), parse_number(metadata.get(_TURN)))
    session, slash, part = document_id.partition("/")
    if not slash or session == NOTE:
        return FactOrigin(NOTE if session == NOTE else "")
    return FactOrigin(TURN if part.isdecimal() else part.partition("-")[0], unquote(session), parse_number(part))


def common_origin(origins: Sequence[FactOrigin]) -> FactOrigin:
    """Return what all origins have in common: the entry, the session, or nothing."""
    first = origins[0] if origins else FactOrigin()
    if any(one.session_id != first.session_id for one in origins):
        return FactOrigin()
    return first if all(one == first for one in origins) else FactOrigin(session_id=first.session_id)


def parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _document_id(session_id: str, part: str) -> str:
    """Join session and part. A session named like the folder of the notes is escaped."""
    return f"{quote(session_id, safe=':') if session_id != NOTE else '%6eote'}/{part}"


def _storable(text: str) -> str:
    """Remove NUL characters, which PostgreSQL can't store."""
    return text.replace("\0", "")
