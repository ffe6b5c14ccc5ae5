"""Our turns, notes and sessions as entries for Mem0, and its memories as recall items. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from everthread.adapters.memory.common.encoding import recall_item
from everthread.ports.memory import RecallItem

TURN, NOTE, DELEGATION, OPENED = "turn", "note", "delegation", "opened"
Metadata = dict[str, Any]


class Mem0Entry(Struct, frozen=True):
    """A log entry for Mem0, stored as a whole or not at all. `key` identifies it when it is redelivered."""

    key: str
    session_id: str
    messages: tuple[tuple[str, str], ...]
    """Role (`user` or `assistant`) and text."""
    metadata: Metadata
    infer: bool = False
    """Let a model extract facts; otherwise the text is stored as it is."""
    attempt: int = 1


class Mem0Memory(Struct, frozen=True):
    id: str
    memory: str = ""
    metadata: Metadata | None = field(default_factory=dict[str, Any])
    score: float | None = None
    created_at: str = ""

    @property
    def about(self) -> Metadata:
        return self.metadata or {}

    @property
    def kind(self) -> str:
        return str(self.about.get("kind", ""))


class Mem0Client(Protocol):
    """Interface of the library and of the cloud. Every method raises `ProviderError` only.

    Memories belong to one `owner`; `about` holds the metadata that they must have.
    """

    async def start(self) -> None: ...

    async def add(self, owner: str, entry: Mem0Entry) -> None:
        """Store an entry once, however often it is added."""
        ...

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Mem0Memory]: ...

    async def memories(self, owner: str, limit: int, **about: str | int) -> Sequence[Mem0Memory]: ...

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        """Remove memories; unknown ids are ignored."""
        ...

    async def close(self, owner: str, session_id: str) -> None:
        """Finish a session: all its entries were added."""
        ...

    async def forget_session(self, owner: str, session_id: str) -> None: ...

    async def forget_owner(self, owner: str) -> None: ...

    async def forget_text(self, owner: str, text: str) -> None:
        """Remove this text, literally, from every memory."""
        ...

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...


def turn_entry(
    session_id: str, turn: int, user: str, assistant: str, at: float | None, *, infer: bool, attempt: int
) -> Mem0Entry:
    metadata = _metadata(TURN, session_id, turn_key(turn), turn=turn, at=at)
    return _entry(session_id, (("user", user), ("assistant", assistant)), metadata, infer=infer, attempt=attempt)


def turn_key(turn: int) -> str:
    return f"{TURN}:{turn}"


def delegation_entry(session_id: str, seq: int, task: str, result: str) -> Mem0Entry:
    metadata = _metadata(DELEGATION, session_id, f"{DELEGATION}:{seq}")
    return _entry(session_id, (("user", f"Handed over: {task}\nCame back: {result}"),), metadata)


def opened_entry(session_id: str, parent_id: str) -> Mem0Entry:
    """Record the parent of a session. A session without one has no such entry."""
    metadata = _metadata(OPENED, session_id, OPENED, parent=parent_id)
    return _entry(session_id, (("user", f"Conversation {session_id} continues conversation {parent_id}."),), metadata)


def note_entry(session_id: str, note_id: str, version: int, content: str, at: float | None) -> Mem0Entry:
    """Convert a note. Its text is stored as it is: its author chose the words."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    key = f"{NOTE}:{note_id}:{version}:{digest}"
    return _entry(
        session_id, (("user", content),), _metadata(NOTE, session_id, key, note=note_id, version=version, at=at)
    )


def note_version(memory: Mem0Memory) -> int:
    version = memory.about.get("version")
    return int(version) if isinstance(version, int | float) else 0


def recall_items(memories: Sequence[Mem0Memory], limit: int) -> tuple[RecallItem, ...]:
    """Convert memories, without lineage entries and without the duplicates of a late request."""
    first: dict[Any, Any] = {}
    items: list[RecallItem] = []
    for one in memories:
        if not one.memory.strip() or one.kind == OPENED:
            continue
        entry = one.about.get("entry", one.id)
        if first.setdefault((one.about.get("session"), entry), one.about.get("request")) == one.about.get("request"):
            items.append(recall_item(one.memory, one.score or 0.0, one.about))
    return tuple(items[:limit])


def duplicate_ids(memories: Sequence[Mem0Memory]) -> tuple[str, ...]:
    """Return the memories of later requests for an entry, given all its memories, oldest first."""
    first: dict[Any, Any] = {}
    ids: list[str] = []
    for one in memories:
        entry, request = one.about.get("entry"), one.about.get("request")
        if entry is not None and first.setdefault((one.about.get("session"), entry), request) != request:
            ids.append(one.id)
    return tuple(ids)


def matches(memory: Mem0Memory, about: Mapping[str, str | int]) -> bool:
    return all(memory.about.get(name) == value for name, value in about.items())


def _metadata(kind: str, session_id: str, entry: str, **more: str | float | None) -> Metadata:
    known = {name: value for name, value in more.items() if value is not None}
    return {"kind": kind, "session": session_id, "entry": entry, **known}


def _entry(
    session_id: str,
    messages: tuple[tuple[str, str], ...],
    metadata: Metadata,
    *,
    infer: bool = False,
    attempt: int = 1,
) -> Mem0Entry:
    spoken = tuple((role, text) for role, text in messages if text.strip())
    return Mem0Entry(str(metadata["entry"]), session_id, spoken, metadata, infer, attempt)
