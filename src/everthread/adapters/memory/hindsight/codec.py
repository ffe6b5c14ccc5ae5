"""What is kept as one document: an entry of a log. Its id says which, so that no entry can ever overwrite another."""

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
_NAMES = uuid.UUID("6c1a1c0e-5f0b-5d0a-9b43-0d1f6a2b7e55")
_OPERATION, _KIND, _SESSION, _TURN, _VERSION, _PARENT = "operation", "kind", "session", "turn", "version", "parent"


class Document(Struct, frozen=True):
    """`metadata` comes back with what is recalled; `tags` are what documents are found by."""

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
        """Under which the server takes it in. It keeps the words of that too, so who forgets needs it."""
        return self.metadata.get(_OPERATION, "")

    @property
    def version(self) -> int:
        return whole(self.metadata.get(_VERSION)) or 0

    def signed(self, bank: str, replay: int) -> Document:
        """With the operation that stands for these very words: a repetition of it is no work, other words are.

        The server has one name space of operations for all its banks.
        """
        metadata = {name: value for name, value in self.metadata.items() if name != _OPERATION}
        said = msgspec.json.encode((bank, self.id, self.content, self.tags, sorted(metadata.items()), replay))
        operation = str(uuid.uuid5(_NAMES, hashlib.sha256(said).hexdigest()))
        return replace(self, metadata={**metadata, _OPERATION: operation})

    def without(self, words: str) -> Document:
        return replace(self, content=self.content.replace(words, FORGOTTEN))

    def item(self) -> dict[str, object]:
        """As the server wants it. `replace` is safe: nothing else has this id."""
        item: dict[str, object] = {
            "content": self.content,
            "document_id": self.id,
            "update_mode": "replace",
            "metadata": self.metadata,
            "tags": self.tags,
            # What it concludes of several sessions belongs to the person, and not to one of them.
            "observation_scopes": "shared",
        }
        if self.context:
            item["context"] = self.context
        if self.at is not None:
            item["timestamp"] = datetime.fromtimestamp(self.at, UTC).isoformat()
        return item


class Origin(Struct, frozen=True):
    """Where something that is recalled comes from."""

    kind: str = ""
    session_id: str = ""
    turn: int | None = None


def turn_of(session_id: str, number: int, user: str, assistant: str, at: float | None) -> Document:
    said = "\n".join(f"{who}: {words}" for who, words in (("user", user), ("assistant", assistant)) if words.strip())
    about = {_KIND: TURN, _SESSION: session_id, _TURN: str(number)}
    context = f"turn {number} of a conversation between the user and their assistant"
    return Document(turn_id(session_id, number), _storable(said), about, (of_session(session_id), TURN), context, at)


def work_of(session_id: str, seq: int, task: str, result: str, child_id: str) -> Document:
    about = {_KIND: WORK, _SESSION: session_id} | ({"child": child_id} if child_id else {})
    said = _storable(f"task: {task}\nresult: {result}")
    return Document(
        _within(session_id, f"work-{seq:04d}"), said, about, (of_session(session_id), WORK), "handed-over work"
    )


def opened_of(session_id: str, parent_id: str) -> Document:
    """Only of a session that has a parent: of another there is nothing to keep."""
    about = {_KIND: OPENED, _SESSION: session_id, _PARENT: parent_id}
    said = f"Conversation {session_id} continues conversation {parent_id}."
    return Document(_within(session_id, OPENED), said, about, (of_session(session_id), OPENED), "lineage")


def note_of(session_id: str, note_id: str, version: int, target: str, content: str, at: float | None) -> Document:
    about = {_KIND: NOTE, _SESSION: session_id, NOTE: note_id, _VERSION: str(version)}
    tags = (of_session(session_id), of_note(note_id), NOTE)
    return Document(note_document_id(note_id), _storable(content), about, tags, f"a note about the {target}", at)


def all_of(session_id: str) -> str:
    """What the ids of a session's documents begin with, but for those of its notes."""
    return _within(session_id, "")


def turn_id(session_id: str, number: int) -> str:
    return _within(session_id, f"{number:04d}")


def note_document_id(note_id: str) -> str:
    return f"{NOTE}/{quote(note_id, safe='')}"


def of_session(session_id: str) -> str:
    return f"session:{session_id}"


def of_note(note_id: str) -> str:
    return f"note:{note_id}"


def origin(document_id: str, metadata: Mapping[str, str]) -> Origin:
    """What the metadata say; an id says almost as much."""
    if _KIND in metadata:
        return Origin(metadata[_KIND], metadata.get(_SESSION, ""), whole(metadata.get(_TURN)))
    session, pause, part = document_id.partition("/")
    if not pause or session == NOTE:
        return Origin(NOTE if session == NOTE else "")
    return Origin(TURN if part.isdecimal() else part.partition("-")[0], unquote(session), whole(part))


def common(origins: Sequence[Origin]) -> Origin:
    """What all of them say: of one session, and perhaps of one turn; nothing, if they are of several."""
    first = origins[0] if origins else Origin()
    if any(one.session_id != first.session_id for one in origins):
        return Origin()
    return first if all(one == first for one in origins) else Origin(session_id=first.session_id)


def whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _within(session_id: str, part: str) -> str:
    """No session is called as notes are: what could be taken for that is escaped."""
    return f"{quote(session_id, safe=':') if session_id != NOTE else '%6eote'}/{part}"


def _storable(text: str) -> str:
    """PostgreSQL has no place for this character."""
    return text.replace("\0", "")
