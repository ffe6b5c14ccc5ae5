"""Types of the reference model: sessions, running turns and texts, as plain lists and dictionaries."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everthread.domain.model import FORGOTTEN, SessionKey, SessionKind


class Violation(AssertionError):
    """A violated invariant."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Violation(what)


Entry = tuple[Any, ...]
At = tuple[SessionKey | None, int, int]
"""Position of a ref: key, epoch and the session's generation. Without a key: the owner's notes session."""


@dataclass
class ModelSession:
    id: str
    owner: str
    key: SessionKey | None
    kind: SessionKind
    shown: list[tuple[int, str]]
    active_at: float
    last: int = 0
    log: list[Entry] = field(default_factory=list[Entry])
    refs: list[At] = field(default_factory=list[At])
    dirty: bool = False
    ended: str | None = None
    forgotten: bool = False
    parent: str | None = None
    delegated_by: str = ""
    """Session that delegated this work, if any."""
    continued_by: str | None = None
    behind: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Turns covered by a summary."""
    generation: int = 0
    used_at: float = 0.0
    """Elapsed time of the last activity."""

    def end(self, reason: str) -> None:
        self.ended = reason
        self.generation += 1

    def close(self, at: At) -> None:
        if self.dirty:
            self.append_log(at, "close", tuple(text for _, text in self.shown))
            self.dirty = False

    def write(self, at: At, *entry: Any) -> None:
        self.append_log(at, *entry)
        self.dirty = True

    def append_log(self, at: At, *entry: Any) -> None:
        self.log.append(entry)
        self.refs.append(at)


@dataclass
class ModelSlot:
    key: SessionKey
    session: str
    text: str
    at: At
    claim: tuple[str, int]
    """Holder that may write the turn, and its fence."""
    fate: str = "live"
    outdated: bool = False
    """A fact of its owner was forgotten since the turn began."""


class StoredTexts:
    """Texts of messages and notes, with their changes since they were written."""

    def __init__(self) -> None:
        self.notes: dict[str, tuple[str, str, str]] = {}
        """Notes by id: owner, text, and the session that wrote the note."""
        self.forgotten: set[str] = set()
        """Texts of forgotten notes."""
        self.note_texts: defaultdict[str, list[str]] = defaultdict(list)
        """Every text of a note, by id."""
        self._forms: dict[str, list[str]] = {}

    def stored(self, text: str) -> str:
        return self._forms[text][-1] if text in self._forms else text

    def told(self, text: str) -> set[str]:
        """All forms in which a text may have been delivered, at different times."""
        return {text, *self._forms.get(text, ())}

    def written(self, text: str, now: str) -> None:
        if now != self.stored(text):
            self._forms.setdefault(text, []).append(now)

    def note(self, note_id: str, owner: str, text: str, session_id: str) -> None:
        """Set the text of a note. An empty text removes it."""
        if text:
            self.notes[note_id] = (owner, text, session_id)
            self.note_texts[note_id].append(text)
        else:
            self.notes.pop(note_id, None)

    def known_texts(self, note_id: str) -> set[str]:
        """Texts of a note. Those that were erased before, with a session, are not known to the store any more."""
        _, current, _ = self.notes.get(note_id, ("", "", ""))
        return {text for text in self.note_texts[note_id] if text == current or text not in self.forgotten}

    def forget_fact(self, note_id: str, owner: str, texts: list[str]) -> None:
        # Longest first, because one fact may be part of another.
        for fact in sorted(self.known_texts(note_id), key=lambda fact: (-len(fact), fact)):
            for text in texts:
                self.written(text, _without(self.stored(text), fact))
            self.forgotten.add(fact)
            self.forget_notes(lambda whose, session_id: whose == owner, fact)

    def forget_notes(self, concerned: Callable[[str, str], bool], fact: str | None = None) -> None:
        for note_id, (owner, text, session_id) in list(self.notes.items()):
            if concerned(owner, session_id) and fact in (None, text):
                self.forgotten.add(text)
                del self.notes[note_id]


def _without(text: str, fact: str) -> str:
    """Erase a fact from a text, where it is not a part of a longer word."""
    return re.sub(rf"(?<![0-9A-Za-z]){re.escape(fact)}(?![0-9A-Za-z])", FORGOTTEN, text)
