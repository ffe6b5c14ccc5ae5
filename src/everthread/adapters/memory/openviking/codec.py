"""Our sessions, turns and notes as names, messages and tags of OpenViking, and back. No I/O.

OpenViking's messages have no idempotency key, but a list of source messages: it names the log entry and the part of it.
The state of a whole session is kept in its tags.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from everthread.adapters.memory.common.encoding import decode_id, encode_id, join_ids
from everthread.domain.model import FORGOTTEN

TURN, WORK = "turn", "work"
TAG_CHARS_MAX = 200
_APP = "everthread"
_SESSION, _TURN, _NOTE, _VERSION = f"{_APP}_session", f"{_APP}_turn", f"{_APP}_note", f"{_APP}_version"
_PARENT, _COVERED, _MISSING = f"{_APP}_parent", f"{_APP}_told", f"{_APP}_missing"
_SETTLED, _PARTIAL = f"{_APP}_settled", f"{_APP}_half"
_SPARE = "spare"
_MARK = re.compile(rf"{_APP}/(\d+)/(\w+)/(\d+)/(\d+)")
_QUOTE = re.compile(r"^\*\*user\*\*: (.+)$", re.MULTILINE)
_WORDS = re.compile(r"[^\W_]+(?: [^\W_]+)*")


class EntryMark(Struct, frozen=True):
    """The part of the log entry that a message holds. `turn` is 0 for an entry that is not a turn."""

    seq: int
    kind: str
    turn: int
    part: int

    def __str__(self) -> str:
        return f"{_APP}/{self.seq}/{self.kind}/{self.turn}/{self.part}"


class SessionMessage(Struct, frozen=True):
    """A message of a session. One that we did not write has no mark."""

    role: str
    text: str
    mark: EntryMark | None = None
    at: str = ""

    def without(self, words: str) -> SessionMessage:
        return replace(self, text=self.text.replace(words, FORGOTTEN))


class _MessagePart(Struct, frozen=True):
    text: str = ""


class _StoredMessage(Struct, frozen=True):
    role: str
    parts: list[_MessagePart] = field(default_factory=list[_MessagePart])
    created_at: str = ""
    source_message_ids: list[str] | None = None


def parse_message(line: str) -> SessionMessage | None:
    """Parse a line of a message file; None if it can't be read."""
    try:
        message = msgspec.json.decode(line, type=_StoredMessage)
    except (msgspec.DecodeError, RecursionError):
        return None
    text = "\n".join(part.text for part in message.parts if part.text)
    return SessionMessage(message.role, text, find_mark(message.source_message_ids), message.created_at)


def message_text(line: str) -> str:
    message = parse_message(line)
    return f"{message.role}: {message.text}" if message is not None else ""


class SessionTags(Struct, frozen=True):
    """State of a session, stored in its tags."""

    parent: str = ""
    covered: tuple[tuple[int, int], ...] = ()
    """Ranges of log entries from which memories were extracted, `missing` ones excepted."""
    missing: tuple[int, ...] = ()
    settled: int = 0
    """Number of archives that are processed."""
    partial: bool = False
    """An incomplete copy."""

    def covers(self, seq: int) -> bool:
        return any(low <= seq <= high for low, high in self.covered) and seq not in self.missing

    def covering(self, messages: Iterable[SessionMessage]) -> SessionTags:
        seqs = [mark.seq for mark in entry_marks(messages)]
        return self._extend(min(seqs), max(seqs)) if seqs else self

    def covering_through(self, seq: int) -> SessionTags:
        """Extend the last range before `seq` to it: every entry up to there was delivered, with or without content."""
        low = max((begin for begin, _ in self.covered if begin <= seq), default=None)
        return self if low is None else self._extend(low, seq)

    def _extend(self, low: int, high: int) -> SessionTags:
        """Add a range, and fill the gap to the range before it: entries are delivered in order.

        A gap after it stays until the entries in between are delivered.
        """
        low = max((begin for begin, _ in self.covered if begin <= low), default=low)
        separate = [(begin, end) for begin, end in self.covered if end < low or begin > high + 1]
        joined = [each for each in self.covered if each not in separate]
        merged = (min([low, *(begin for begin, _ in joined)]), max([high, *(end for _, end in joined)]))
        return replace(self, covered=tuple(sorted([*separate, merged])))

    @property
    def tags(self) -> list[str]:
        tags = [f"{_SETTLED}={self.settled}"]
        if self.covered:
            tags.append(f"{_COVERED}={'.'.join(f'{low}-{high}' for low, high in self.covered)}")
        if self.parent:
            tags.append(f"{_PARENT}={_tag_value(self.parent)}")
        if self.missing:
            tags.append(f"{_MISSING}={'.'.join(str(seq) for seq in self.missing)}")
        return [*tags, f"{_PARTIAL}=1"] if self.partial else tags


def parse_tags(tags: Iterable[str]) -> SessionTags:
    values = tag_values(tags)
    ranges = (_parse_range(each) for each in values.get(_COVERED, "").split("."))
    missing = (_parse_number(each) for each in values.get(_MISSING, "").split("."))
    return SessionTags(
        parent=decode_id(values.get(_PARENT, "")) or "",
        covered=tuple(each for each in ranges if each is not None),
        missing=tuple(seq for seq in missing if seq is not None),
        settled=_parse_number(values.get(_SETTLED)) or 0,
        partial=_PARTIAL in values,
    )


def user_name(owner: str) -> str:
    return encode_id(owner)


def session_name(session_id: str) -> str:
    return encode_id(session_id)


def copy_name(name: str) -> str:
    """Name the copy of a session that is being rewritten."""
    return join_ids(name, _SPARE)


def original_name(name: str) -> str:
    """Return the name of the session of a copy."""
    return name.removesuffix(join_ids("", _SPARE))


def entry_messages(
    sides: Sequence[tuple[str, str]], *, seq: int, kind: str, turn: int, at: float | None
) -> tuple[SessionMessage, ...]:
    """Convert a log entry to messages. A blank side has none."""
    when = datetime.fromtimestamp(at, UTC).isoformat() if at is not None else ""
    spoken = ((role, text) for role, text in sides if text.strip())
    return tuple(
        SessionMessage(role, text, EntryMark(seq, kind, turn, part), when) for part, (role, text) in enumerate(spoken)
    )


def find_mark(sources: Iterable[str] | None) -> EntryMark | None:
    for source in sources or ():
        if found := _MARK.fullmatch(source):
            return EntryMark(int(found[1]), found[2], int(found[3]), int(found[4]))
    return None


def without_duplicates(messages: Iterable[SessionMessage]) -> tuple[SessionMessage, ...]:
    """Remove messages that repeat a mark. Messages without one all stay."""
    known: set[EntryMark] = set()
    kept: list[SessionMessage] = []
    for message in messages:
        if message.mark is None or message.mark not in known:
            kept.append(message)
        if message.mark is not None:
            known.add(message.mark)
    return tuple(kept)


def entry_marks(messages: Iterable[SessionMessage]) -> set[EntryMark]:
    return {message.mark for message in messages if message.mark is not None}


def turn_numbers(messages: Iterable[SessionMessage]) -> set[int]:
    return {mark.turn for mark in entry_marks(messages) if mark.kind == TURN}


def belongs_to(message: SessionMessage, turns: Collection[int]) -> bool:
    return message.mark is not None and message.mark.kind == TURN and message.mark.turn in turns


def source_turn(memory: str, messages: Sequence[SessionMessage]) -> int | None:
    """Return the turn that a memory was extracted from, if only one is possible. A memory may quote messages."""
    possible = turn_numbers(messages)
    if len(possible) == 1 and all(message.mark is not None for message in messages):
        return next(iter(possible))
    # An excerpt of a long message has dots in place of the rest.
    quoted = [quote.strip().removeprefix("...").removesuffix("...") for quote in _QUOTE.findall(memory)]
    asked = [message for message in messages if message.role == "user"]
    matching = turn_numbers(message for message in asked if any(quote in message.text for quote in quoted))
    return next(iter(matching)) if len(matching) == 1 else None


# Tags -----------------------------------------------------------------------------------------------------------------


def session_tag(session_id: str) -> str:
    return f"{_SESSION}={_tag_value(session_id)}"


def origin_tags(session_id: str, turn: int | None = None) -> list[str]:
    return [session_tag(session_id), *([f"{_TURN}={turn}"] if turn is not None else [])]


def note_tags(session_id: str, note_id: str, version: int) -> list[str]:
    return [session_tag(session_id), f"{_NOTE}={_tag_value(note_id)}", f"{_VERSION}={version}"]


def parse_origin(tags: Iterable[str]) -> tuple[str, int | None]:
    """Return the session, empty if unknown, and the turn."""
    values = tag_values(tags)
    return decode_id(values.get(_SESSION, "")) or "", _parse_number(values.get(_TURN))


def parse_version(tags: Iterable[str]) -> int:
    return _parse_number(tag_values(tags).get(_VERSION)) or 0


def tag_values(tags: Iterable[str]) -> dict[str, str]:
    return {key: value for key, _, value in (tag.partition("=") for tag in tags)}


# Files ----------------------------------------------------------------------------------------------------------------


def memories_uri(user: str) -> str:
    return f"viking://user/{user}/memories"


def sessions_uri(user: str) -> str:
    return f"viking://user/{user}/sessions"


def archive_uri(user: str, name: str, number: int) -> str:
    return f"{sessions_uri(user)}/{name}/history/archive_{number:03d}"


def note_uri(user: str, note_id: str) -> str:
    return f"{memories_uri(user)}/notes/{encode_id(note_id)}.md"


def remainder_uri(user: str, uri: str) -> str:
    """Return the file for the remainder of a memory after forgetting: the old name may contain the text too."""
    return f"{memories_uri(user)}/rests/{hashlib.sha256(uri.encode()).hexdigest()[:32]}.md"


def grep_pattern(words: str) -> str:
    """Return a pattern for the longest part of a text that no file format escapes."""
    return max(_WORDS.findall(words), key=len, default=".")


def message_grep_pattern(words: str) -> str:
    """Return a pattern for a text as it is escaped in message files."""
    return re.escape(_json_escaped(words)).replace("\\ ", " ")


def contains_text(file: str, text: str) -> bool:
    return text in file or _json_escaped(text) in file


def _json_escaped(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)[1:-1]


def _tag_value(text: str) -> str:
    return encode_id(text, TAG_CHARS_MAX, lower=True)


def _parse_range(text: str) -> tuple[int, int] | None:
    low, _, high = text.partition("-")
    begin, end = _parse_number(low), _parse_number(high)
    return (begin, end) if begin is not None and end is not None else None


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
