"""The export file of sessions: one JSON object per line, and the validation of the lines.

    header, then for each session (parents first): session, its turns, rewinds and delegations in the order of its log;
    then notes; then end.

docs/reference/export-format.md describes every field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from everthread.domain import titles
from everthread.domain.errors import BadExport, BadKey, BadTitle
from everthread.domain.model import OWNER_CHARS_MAX, Cause, NoteTarget, Role, SessionKey, SessionKind, TurnStatus
from everthread.domain.recall_scope import chat_of

VERSION = 1
LINE_BYTES_MAX = 128 * 1024 * 1024
TEXT_CHARS_MAX = 10_000_000
ID_CHARS_MAX = 300
SESSIONS_MAX = 1_000_000
MESSAGES_MAX = 4096
NOTE_CHARS_MAX = 20_000
SUMMARY_CHARS_MAX = 1_000_000
_NUMBER_MAX = 2**31 - 1

# Ids are displayed unescaped. Colons are excluded, because the program's own ids use them.
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*\Z", max_length=ID_CHARS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Number = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
TurnNumber = Annotated[int, Meta(ge=1, le=_NUMBER_MAX)]
Time = Annotated[float, Meta(ge=0, le=253_402_300_799)]
"""Seconds since the epoch, UTC, up to the year 9999."""


class Line(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """Base class of all lines. `type` names the kind of a line; unknown fields are ignored."""


class Header(Line, frozen=True, tag="everthread-export"):
    """The first line."""

    version: int
    exported_at: Time = 0.0
    program: str = ""


class Base(Struct, frozen=True, omit_defaults=True):
    """The part of its parent that a session shows: turns up to `turn`, as of the first `rewinds` rewinds."""

    turn: Number = 0
    rewinds: Number = 0


class SessionLine(Line, frozen=True, tag="session"):
    """A session. Its turns, rewinds and delegations follow."""

    id: Id
    owner: Annotated[str, Meta(min_length=1, max_length=OWNER_CHARS_MAX)]
    key: Annotated[str, Meta(max_length=512)]
    opened_at: Time
    active_at: Time
    kind: SessionKind = SessionKind.CHAT
    cause: Cause = Cause.NEW
    title: Annotated[str, Meta(max_length=titles.TITLE_CHARS_MAX)] | None = None
    generation: Number = 0
    ended_at: Time | None = None
    end_reason: Annotated[str, Meta(pattern="^[a-z_]+$", max_length=100)] | None = None
    parent: Id | None = None
    base: Base = Base()
    floor: Number = 0
    summary: Annotated[str, Meta(max_length=SUMMARY_CHARS_MAX)] | None = None
    summary_of: Id | None = None
    """The session whose summary this one starts with, if it has none of its own."""


class CallLine(Struct, frozen=True, omit_defaults=True):
    """A tool call within a message."""

    id: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
    name: Text
    arguments: Text


class MessageLine(Struct, frozen=True, omit_defaults=True):
    """A message within a turn."""

    role: Role
    content: Text = ""
    tool_calls: tuple[CallLine, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    reasoning: Text | None = None


class TurnLine(Line, frozen=True, tag="turn"):
    """A turn of the session above."""

    session: Id
    number: TurnNumber
    id: Id
    at: Time
    messages: Annotated[tuple[MessageLine, ...], Meta(max_length=MESSAGES_MAX)] = ()
    status: TurnStatus = TurnStatus.DONE
    hidden: bool = False
    """Informative: a rewind has hidden the turn. An import uses the rewind lines."""
    chat: Annotated[str, Meta(max_length=512)] | None = None
    """The group chat in which it was said; None if it was said in private or the file does not tell."""


class RewindLine(Line, frozen=True, tag="rewind"):
    """A rewind that hid turns of the session above."""

    session: Id
    at: Time
    turns: tuple[TurnNumber, ...]


class DelegationLine(Line, frozen=True, tag="delegation"):
    """Work that the session above delegated, and its result."""

    session: Id
    at: Time
    task: Text = ""
    result: Text = ""
    child: Annotated[str, Meta(max_length=ID_CHARS_MAX)] = ""


class NoteLine(Line, frozen=True, tag="note"):
    """A note."""

    id: Id
    owner: Annotated[str, Meta(min_length=1, max_length=OWNER_CHARS_MAX)]
    target: NoteTarget
    content: Annotated[str, Meta(min_length=1, max_length=NOTE_CHARS_MAX)]
    at: Time


class EndLine(Line, frozen=True, tag="end"):
    """The last line, with the totals of the file. A file without it is truncated."""

    sessions: Number
    turns: Number
    notes: Number = 0


Item = TurnLine | RewindLine | DelegationLine
AnyLine = Header | SessionLine | Item | NoteLine | EndLine
_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def encode_line(line: AnyLine) -> bytes:
    """Encode a line, including the line break."""
    return msgspec.json.encode(line) + b"\n"


class _Seen(Struct):
    """The data of a session that the validation of later lines needs."""

    session: SessionLine
    last_turn: int
    rewinds: int = 0
    hidden: set[int] = field(default_factory=set[int])


class ExportReader:
    """Decode the lines of a file, and validate each by itself and against the lines before it.

    Raises `BadExport` with the line number. Memory use grows with the number of sessions, not of turns.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._at = 0
        self._sessions: dict[str, _Seen] = {}
        self._open: _Seen | None = None
        self._turns = 0
        self._notes: set[str] = set()
        self._ended = False

    def lines(self, raw: Iterable[bytes]) -> Iterator[AnyLine]:
        """Yield the validated lines."""
        for text in raw:
            self._at += 1
            if len(text) > LINE_BYTES_MAX:
                raise self._bad(f"is longer than {LINE_BYTES_MAX // 1024 // 1024} MB")
            try:
                line = _DECODER.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._bad(str(error) or type(error).__name__) from None
            self._check(line)
            yield line
        if not self._ended:
            self._at += 1
            raise self._bad("the file ends before its end line; it was cut off, export it again")

    def _check(self, line: AnyLine) -> None:
        if self._ended:
            raise self._bad("nothing may follow the end line")
        if (self._at == 1) != isinstance(line, Header):
            raise self._bad("the first line, and no other, must be the header (type everthread-export)")
        match line:
            case Header():
                if line.version != VERSION:
                    raise self._bad(f"has version {line.version}; this program reads version {VERSION}; upgrade it")
            case SessionLine():
                self._check_session(line)
            case TurnLine() | RewindLine() | DelegationLine():
                self._check_item(line, self._belonging(line.session))
            case NoteLine():
                self._check_note(line)
            case EndLine():
                self._check_end(line)

    def _check_item(self, line: Item, seen: _Seen) -> None:
        if isinstance(line, TurnLine):
            self._check_turn(line, seen)
        elif isinstance(line, RewindLine):
            self._check_rewind(line, seen)

    def _check_note(self, line: NoteLine) -> None:
        self._open = None
        if line.id in self._notes:
            raise self._bad(f"note {line.id!r} is in the file twice")
        if not line.content.strip():
            raise self._bad("the note is empty")
        self._notes.add(line.id)

    def _check_session(self, line: SessionLine) -> None:
        if self._notes:
            raise self._bad("sessions come before notes")
        if line.id in self._sessions:
            raise self._bad(f"session {line.id!r} is in the file twice")
        if len(self._sessions) >= SESSIONS_MAX:
            raise self._bad(f"a file has at most {SESSIONS_MAX} sessions")
        if line.kind is SessionKind.NOTES:
            raise self._bad("a session of kind notes can't be imported; notes have lines of their own")
        try:
            SessionKey.parse(line.key)
            if line.title is not None and titles.clean(line.title) != line.title:
                raise self._bad(f"{line.title!r} is not a valid title; write {titles.clean(line.title)!r}")
        except (BadKey, BadTitle) as error:
            raise self._bad(str(error)) from None
        if (line.ended_at is None) != (line.end_reason is None):
            raise self._bad("ended_at and end_reason must be given together")
        self._check_lineage(line)
        self._open = self._sessions[line.id] = _Seen(line, line.base.turn)

    def _check_lineage(self, line: SessionLine) -> None:
        base = line.base
        if line.parent is None:
            if base.rewinds or base.turn > line.floor:
                raise self._bad("a session without a parent must have an empty base")
        else:
            parent = self._sessions.get(line.parent)
            if parent is None:
                raise self._bad(f"its parent {line.parent!r} must come before it")
            if base.turn > parent.last_turn or base.rewinds > parent.rewinds:
                raise self._bad(f"its parent {line.parent!r} has fewer turns or rewinds than its base says")
        if line.floor > base.turn:
            raise self._bad("floor lies above base.turn")
        if line.summary is not None and line.summary_of is not None:
            raise self._bad("a summary is its own or another session's, not both")
        if line.summary_of is not None and line.summary_of not in self._sessions:
            raise self._bad(f"the session {line.summary_of!r} of its summary must come before it")
        if line.summary_of is not None and self._sessions[line.summary_of].session.summary is None:
            raise self._bad(f"the session {line.summary_of!r} has no summary")

    def _check_turn(self, line: TurnLine, seen: _Seen) -> None:
        if line.number <= seen.last_turn:
            raise self._bad(f"turn {line.number} does not come after turn {seen.last_turn}")
        if line.chat is not None and not _is_group_chat(line.chat):
            raise self._bad(f"{line.chat[:100]!r} is not the chat of a group")
        size = sum(len(m.content) + len(m.reasoning or "") for m in line.messages)
        if size > TEXT_CHARS_MAX * 10:
            raise self._bad(f"a turn has at most {TEXT_CHARS_MAX * 10} characters")
        seen.last_turn = line.number
        self._turns += 1

    def _check_rewind(self, line: RewindLine, seen: _Seen) -> None:
        if not line.turns or list(line.turns) != sorted(set(line.turns)):
            raise self._bad("a rewind must name turns, each once, in their order")
        if line.turns[-1] > seen.last_turn or seen.hidden & set(line.turns):
            raise self._bad("a rewind must name earlier turns that no other rewind names")
        seen.hidden.update(line.turns)
        seen.rewinds += 1

    def _check_end(self, line: EndLine) -> None:
        found = (len(self._sessions), self._turns, len(self._notes))
        if found != (line.sessions, line.turns, line.notes):
            raise self._bad("the contents of the file do not match its end line; export it again")
        self._ended = True

    def _belonging(self, session_id: str) -> _Seen:
        if self._open is None or self._open.session.id != session_id:
            raise self._bad(f"it belongs to session {session_id[:100]!r}, and must follow its line")
        return self._open

    def _bad(self, why: str) -> BadExport:
        return BadExport(f"{self._name}, line {self._at}: {why}")


def _is_group_chat(chat: str) -> bool:
    try:
        return chat_of(SessionKey.parse(chat)) == chat
    except BadKey:
        return False
