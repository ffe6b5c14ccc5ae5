"""Our sessions, turns and notes in OpenViking's names, messages and tags, and back. Pure.

A message has no idempotency key there, but it may name the messages it was made from: that is where each says which
part of which entry of our log it is. What is known of a session as a whole stands in its tags.
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

from everthread.adapters.memory.common.encoding import decoded, encoded, named
from everthread.domain.model import FORGOTTEN

TURN, WORK = "turn", "work"
TAG_CHARS_MAX = 200
_SIGN = "everthread"
_SESSION, _TURN, _NOTE, _VERSION = f"{_SIGN}_session", f"{_SIGN}_turn", f"{_SIGN}_note", f"{_SIGN}_version"
_PARENT, _TOLD, _MISSING = f"{_SIGN}_parent", f"{_SIGN}_told", f"{_SIGN}_missing"
_SETTLED, _HALF = f"{_SIGN}_settled", f"{_SIGN}_half"
_SPARE = "spare"
_MARK = re.compile(rf"{_SIGN}/(\d+)/(\w+)/(\d+)/(\d+)")
_QUOTED = re.compile(r"^\*\*user\*\*: (.+)$", re.MULTILINE)
_WORDS = re.compile(r"[^\W_]+(?: [^\W_]+)*")


class Mark(Struct, frozen=True):
    """Which part of which entry of a session's log a message is. `turn` is 0 for what is no turn."""

    seq: int
    kind: str
    turn: int
    part: int

    def __str__(self) -> str:
        return f"{_SIGN}/{self.seq}/{self.kind}/{self.turn}/{self.part}"


class Line(Struct, frozen=True):
    """A message of a conversation. One that somebody else put there has no mark."""

    role: str
    text: str
    mark: Mark | None = None
    at: str = ""

    def without(self, words: str) -> Line:
        return replace(self, text=self.text.replace(words, FORGOTTEN))


class _Part(Struct, frozen=True):
    text: str = ""


class _Message(Struct, frozen=True):
    role: str
    parts: list[_Part] = field(default_factory=list[_Part])
    created_at: str = ""
    source_message_ids: list[str] | None = None


def line_in(row: str) -> Line | None:
    """A message as it is kept in a file; None if it can't be read."""
    try:
        message = msgspec.json.decode(row, type=_Message)
    except (msgspec.DecodeError, RecursionError):
        return None
    said = "\n".join(part.text for part in message.parts if part.text)
    return Line(message.role, said, mark_of(message.source_message_ids), message.created_at)


def said_in(row: str) -> str:
    line = line_in(row)
    return f"{line.role}: {line.text}" if line is not None else ""


class About(Struct, frozen=True):
    """What a session's tags say of it."""

    parent: str = ""
    told: tuple[tuple[int, int], ...] = ()
    """From which entry to which everything was taken in and drawn from, but for those that are `missing`."""
    missing: tuple[int, ...] = ()
    settled: int = 0
    """So many of its archives are dealt with."""
    half: bool = False
    """A copy that is not whole yet."""

    def has_told(self, seq: int) -> bool:
        return any(low <= seq <= high for low, high in self.told) and seq not in self.missing

    def having_told(self, lines: Iterable[Line]) -> About:
        seqs = [mark.seq for mark in marks(lines)]
        return self._stretched(min(seqs), max(seqs)) if seqs else self

    def reaching(self, seq: int) -> About:
        """Everything up to there was handed over, whether there was anything in it to keep or not."""
        low = max((begin for begin, _ in self.told if begin <= seq), default=None)
        return self if low is None else self._stretched(low, seq)

    def _stretched(self, low: int, high: int) -> About:
        """A log is told from its start to its end: what lies between this and what was told before it was told too.

        Who is told of a session in its middle, and of its beginning later, has a gap until then.
        """
        low = max((begin for begin, _ in self.told if begin <= low), default=low)
        apart = [(begin, end) for begin, end in self.told if end < low or begin > high + 1]
        joined = [each for each in self.told if each not in apart]
        whole = (min([low, *(begin for begin, _ in joined)]), max([high, *(end for _, end in joined)]))
        return replace(self, told=tuple(sorted([*apart, whole])))

    @property
    def tags(self) -> list[str]:
        tags = [f"{_SETTLED}={self.settled}"]
        if self.told:
            tags.append(f"{_TOLD}={'.'.join(f'{low}-{high}' for low, high in self.told)}")
        if self.parent:
            tags.append(f"{_PARENT}={_tag(self.parent)}")
        if self.missing:
            tags.append(f"{_MISSING}={'.'.join(str(seq) for seq in self.missing)}")
        return [*tags, f"{_HALF}=1"] if self.half else tags


def about(tags: Iterable[str]) -> About:
    said = values(tags)
    return About(
        parent=decoded(said.get(_PARENT, "")) or "",
        told=tuple(found for each in said.get(_TOLD, "").split(".") if (found := _stretch(each)) is not None),
        missing=tuple(seq for each in said.get(_MISSING, "").split(".") if (seq := _number(each)) is not None),
        settled=_number(said.get(_SETTLED)) or 0,
        half=_HALF in said,
    )


def person(owner: str) -> str:
    return encoded(owner)


def room(session_id: str) -> str:
    """What a session is called there."""
    return encoded(session_id)


def spare(name: str) -> str:
    """Where a session is kept while it is written anew."""
    return named(name, _SPARE)


def original(name: str) -> str:
    """The session that a copy is of."""
    return name.removesuffix(named("", _SPARE))


def lines_of(sides: Sequence[tuple[str, str]], *, seq: int, kind: str, turn: int, at: float | None) -> tuple[Line, ...]:
    """An entry as messages; a side that said nothing has none."""
    when = datetime.fromtimestamp(at, UTC).isoformat() if at is not None else ""
    said = ((role, text) for role, text in sides if text.strip())
    return tuple(Line(role, text, Mark(seq, kind, turn, part), when) for part, (role, text) in enumerate(said))


def mark_of(sources: Iterable[str] | None) -> Mark | None:
    for source in sources or ():
        if found := _MARK.fullmatch(source):
            return Mark(int(found[1]), found[2], int(found[3]), int(found[4]))
    return None


def once(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Each part of each entry once. What has no mark is not ours to judge."""
    known: set[Mark] = set()
    kept: list[Line] = []
    for line in lines:
        if line.mark is None or line.mark not in known:
            kept.append(line)
        if line.mark is not None:
            known.add(line.mark)
    return tuple(kept)


def marks(lines: Iterable[Line]) -> set[Mark]:
    return {line.mark for line in lines if line.mark is not None}


def turns(lines: Iterable[Line]) -> set[int]:
    return {mark.turn for mark in marks(lines) if mark.kind == TURN}


def is_of(line: Line, turns: Collection[int]) -> bool:
    return line.mark is not None and line.mark.kind == TURN and line.mark.turn in turns


def turn_of(memory: str, lines: Sequence[Line]) -> int | None:
    """The turn that a memory was drawn from, if it can be only one: it may quote what was said."""
    possible = turns(lines)
    if len(possible) == 1 and all(line.mark is not None for line in lines):
        return next(iter(possible))
    # A part of a long message has dots where the rest was.
    quoted = [quote.strip().removeprefix("...").removesuffix("...") for quote in _QUOTED.findall(memory)]
    said = turns(line for line in lines if line.role == "user" and any(quote in line.text for quote in quoted))
    return next(iter(said)) if len(said) == 1 else None


# Tags -----------------------------------------------------------------------------------------------------------------


def session_tag(session_id: str) -> str:
    return f"{_SESSION}={_tag(session_id)}"


def origin_tags(session_id: str, turn: int | None = None) -> list[str]:
    return [session_tag(session_id), *([f"{_TURN}={turn}"] if turn is not None else [])]


def note_tags(session_id: str, note_id: str, version: int) -> list[str]:
    return [session_tag(session_id), f"{_NOTE}={_tag(note_id)}", f"{_VERSION}={version}"]


def origin(tags: Iterable[str]) -> tuple[str, int | None]:
    """The session, as far as it can be told, and the turn."""
    said = values(tags)
    return decoded(said.get(_SESSION, "")) or "", _number(said.get(_TURN))


def version(tags: Iterable[str]) -> int:
    return _number(values(tags).get(_VERSION)) or 0


def values(tags: Iterable[str]) -> dict[str, str]:
    return {key: value for key, _, value in (tag.partition("=") for tag in tags)}


# Files ----------------------------------------------------------------------------------------------------------------


def memories_of(user: str) -> str:
    return f"viking://user/{user}/memories"


def sessions_of(user: str) -> str:
    return f"viking://user/{user}/sessions"


def archive(user: str, name: str, number: int) -> str:
    return f"{sessions_of(user)}/{name}/history/archive_{number:03d}"


def note_file(user: str, note_id: str) -> str:
    return f"{memories_of(user)}/notes/{encoded(note_id)}.md"


def rest_file(user: str, uri: str) -> str:
    """Where the rest of a memory is kept when some of its words are forgotten: its name may have them too."""
    return f"{memories_of(user)}/rests/{hashlib.sha256(uri.encode()).hexdigest()[:32]}.md"


def sought(words: str) -> str:
    """A pattern for the longest part of a text that stands in every file as it is, whatever is escaped there."""
    return max(_WORDS.findall(words), key=len, default=".")


def sought_in_messages(words: str) -> str:
    """A pattern for a text as it stands in the files that have messages."""
    return re.escape(_escaped(words)).replace("\\ ", " ")


def has_words(file: str, words: str) -> bool:
    return words in file or _escaped(words) in file


def _escaped(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)[1:-1]


def _tag(text: str) -> str:
    return encoded(text, TAG_CHARS_MAX, low=True)


def _stretch(text: str) -> tuple[int, int] | None:
    low, _, high = text.partition("-")
    begin, end = _number(low), _number(high)
    return (begin, end) if begin is not None and end is not None else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
