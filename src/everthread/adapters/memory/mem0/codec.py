"""Our turns, notes and sessions as entries that Mem0 is given, and what it remembers of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from everthread.ports.memory import RecallItem

TURN, NOTE, DELEGATION, OPENED = "turn", "note", "delegation", "opened"
Metadata = dict[str, Any]


class Entry(Struct, frozen=True):
    """What is given at once, and is there wholly or not at all. `key` is what it is known by if it comes again."""

    key: str
    session_id: str
    messages: tuple[tuple[str, str], ...]
    """Who says what: `user` or `assistant`, and the words."""
    metadata: Metadata
    infer: bool = False
    """Whether a model draws facts from it; else it is kept word for word."""
    attempt: int = 1


class Remembered(Struct, frozen=True):
    """A memory of Mem0's."""

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


class Memories(Protocol):
    """What either Mem0 does for us: the library on this machine, or the platform. Each raises `ProviderError` only.

    Everything belongs to one person, the `owner`, and `about` is what its metadata must say.
    """

    async def begin(self) -> None:
        """What has to be ready before anything else."""
        ...

    async def add(self, owner: str, entry: Entry) -> None:
        """Have it there, once, however often it is asked for."""
        ...

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Remembered]: ...

    async def listed(self, owner: str, limit: int, **about: str | int) -> Sequence[Remembered]: ...

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        """Those that are there; the others are gone already."""
        ...

    async def close(self, owner: str, session_id: str) -> None:
        """Everything of the session has come."""
        ...

    async def forget_session(self, owner: str, session_id: str) -> None: ...

    async def forget_person(self, owner: str) -> None: ...

    async def forget_words(self, owner: str, words: str) -> None:
        """Take them out of whatever has them, literally."""
        ...

    async def check(self) -> None:
        """Raises what is wrong."""
        ...

    async def aclose(self) -> None: ...


def turn_entry(
    session_id: str, turn: int, user: str, assistant: str, at: float | None, *, infer: bool, attempt: int
) -> Entry:
    about = _about(TURN, session_id, turn_key(turn), turn=turn, at=at)
    return _entry(session_id, (("user", user), ("assistant", assistant)), about, infer=infer, attempt=attempt)


def turn_key(turn: int) -> str:
    return f"{TURN}:{turn}"


def delegation_entry(session_id: str, seq: int, task: str, result: str) -> Entry:
    about = _about(DELEGATION, session_id, f"{DELEGATION}:{seq}")
    return _entry(session_id, (("user", f"Handed over: {task}\nCame back: {result}"),), about)


def opened_entry(session_id: str, parent_id: str) -> Entry:
    """Only of a session that has a parent: of another there is nothing to keep."""
    about = _about(OPENED, session_id, OPENED, parent=parent_id)
    return _entry(session_id, (("user", f"Conversation {session_id} continues conversation {parent_id}."),), about)


def note_entry(session_id: str, note_id: str, version: int, content: str, at: float | None) -> Entry:
    """Kept as it is: somebody chose its words."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    about = _about(NOTE, session_id, f"{NOTE}:{note_id}:{version}:{digest}", note=note_id, version=version, at=at)
    return _entry(session_id, (("user", content),), about)


def version_of(remembered: Remembered) -> int:
    version = remembered.about.get("version")
    return int(version) if isinstance(version, int | float) else 0


def recalled(found: Sequence[Remembered], limit: int) -> tuple[RecallItem, ...]:
    """Nothing of a lineage, which says nothing in a prompt, and nothing that a late request has said twice."""
    first: dict[Any, Any] = {}
    items: list[RecallItem] = []
    for one in found:
        if not one.memory.strip() or one.kind == OPENED:
            continue
        entry = one.about.get("entry", one.id)
        if first.setdefault((one.about.get("session"), entry), one.about.get("request")) == one.about.get("request"):
            items.append(_item(one))
    return tuple(items[:limit])


def repeated(found: Sequence[Remembered]) -> tuple[str, ...]:
    """The ids of what came of an entry's second request, where there is something of the first. Oldest first."""
    first: dict[Any, Any] = {}
    ids: list[str] = []
    for one in found:
        entry, request = one.about.get("entry"), one.about.get("request")
        if entry is not None and first.setdefault((one.about.get("session"), entry), request) != request:
            ids.append(one.id)
    return tuple(ids)


def fits(remembered: Remembered, about: Mapping[str, str | int]) -> bool:
    return all(remembered.about.get(name) == value for name, value in about.items())


def _item(one: Remembered) -> RecallItem:
    session, turn, at = (one.about.get(name) for name in ("session", "turn", "at"))
    return RecallItem(
        one.memory,
        one.score or 0.0,
        session_id=session if isinstance(session, str) else "",
        # Numbers may come back as floating ones.
        turn=int(turn) if isinstance(turn, int | float) else None,
        at=float(at) if isinstance(at, int | float) else None,
    )


def _about(kind: str, session_id: str, entry: str, **more: str | float | None) -> Metadata:
    known = {name: value for name, value in more.items() if value is not None}
    return {"kind": kind, "session": session_id, "entry": entry, **known}


def _entry(
    session_id: str,
    messages: tuple[tuple[str, str], ...],
    about: Metadata,
    *,
    infer: bool = False,
    attempt: int = 1,
) -> Entry:
    said = tuple((who, words) for who, words in messages if words.strip())
    return Entry(str(about["entry"]), session_id, said, about, infer, attempt)
