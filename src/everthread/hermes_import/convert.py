"""Convert sessions of Hermes to lines of the export format, parents first. Pure, except for its counters.

A Hermes branch copies its parent's messages. Here, a branch refers to them, and so does a session after a summary.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from everthread.domain import titles
from everthread.domain.errors import BadTitle
from everthread.domain.export_format import ID_CHARS_MAX, Base, Item, RewindLine, SessionLine, TurnLine
from everthread.domain.model import Cause, SessionKey, SessionKind
from everthread.hermes_import.compaction import (
    VisibleMessage,
    key_of,
    read_continuation,
    split_at_summaries,
    summary_time,
)
from everthread.hermes_import.lineage import LinkedSession, Relation
from everthread.hermes_import.rows import MessageRow, SessionRow
from everthread.hermes_import.turns import TurnRows, turns_of

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*\Z")
_ROOM = 40
"""Characters of an id reserved for a part number and the row ids of a turn."""


class Destination(Struct, frozen=True):
    key: SessionKey
    owner: str


class ConvertedSession(Struct, frozen=True):
    """A converted session."""

    line: SessionLine
    turns: tuple[TurnLine, ...]

    def items(self, known: Mapping[int, str], rewinds: Sequence[tuple[int, ...]]) -> Iterator[Item]:
        """Return the lines of the session: known turns, known rewinds, new turns, new rewinds.

        Hermes does not record the time of a rewind, so known rewinds precede everything new.
        """
        last = max(known, default=0)
        hidden = {turn.number for turn in self.turns if turn.hidden}
        yield from (turn for turn in self.turns if turn.number <= last)
        for taken_back in rewinds:
            if hidden.issuperset(taken_back):
                yield RewindLine(self.line.id, self.line.active_at, taken_back)
        yield from (turn for turn in self.turns if turn.number > last)
        new = sorted(hidden.difference(*rewinds))
        if new:
            yield RewindLine(self.line.id, self.line.active_at, tuple(new))


class VisibleHistory(Struct, frozen=True):
    """The visible messages of a session, to compare its children with."""

    session_id: str
    shown: tuple[VisibleMessage, ...]
    last_turn: int
    floor: int
    summary_of: str | None
    hidden: frozenset[int]
    since: float = 0.0

    def up_to(self, at: float) -> VisibleHistory:
        """Return the state at that time."""
        shown = tuple(seen for seen in self.shown if seen.at <= at)
        last = max((seen.turn for seen in shown), default=self.floor)
        return replace(self, shown=shown, last_turn=max(last, self.floor))


class _Start(Struct, frozen=True):
    """The start of a session: the inherited part of its parent, and its own rows."""

    rows: Sequence[MessageRow]
    cause: Cause = Cause.NEW
    parent: str | None = None
    base: int = 0
    floor: int = 0
    summary: str | None = None
    summary_of: str | None = None
    shown: tuple[VisibleMessage, ...] = ()


class Converter(Struct):
    """Converts all sessions, and keeps the trail of each while it has unconverted children."""

    place_of: Callable[[LinkedSession], Destination]
    now: float
    waiting: dict[str, int]
    """The number of unconverted children, by session."""
    histories: dict[str, list[VisibleHistory]] = field(default_factory=dict[str, list[VisibleHistory]])
    """For each session, one trail per part: in-place summaries divide it into parts."""
    unknown: dict[str, int] = field(default_factory=dict[str, int])
    """Number of messages by unknown role."""
    unfinished: int = 0

    def session(self, member: LinkedSession, rows: Iterable[MessageRow]) -> list[ConvertedSession]:
        """Convert a session of Hermes: one session, plus one for each summary that was made in place."""
        known = list(self._known_rows(rows))
        place = self.place_of(member)
        before = _find_parent_history(member, known, self._parent_histories(member))
        arriving: list[ConvertedSession] = []
        histories: list[VisibleHistory] = []
        some = split_at_summaries(known, continues=member.relation is Relation.COMPRESSION and before is not None)
        for number, part in enumerate(some):
            session_id = our_id(member.row.id, number)
            start = _begin(member, before, part) if not number else _begin_continuation(before, part, Cause.COMPRESSION)
            ends = some[number + 1][0].at if number + 1 < len(some) else None
            turns, own = self._turns(member.row, start, session_id, last=ends is None)
            opened_at = part[0].at if number else member.row.started_at
            line = _line(member, place, session_id, start, turns, ends, opened_at)
            arriving.append(ConvertedSession(line, turns))
            before = _history(session_id, start, own, summary_time(part) if number else member.row.started_at)
            histories.append(before)
        if member.row.id in self.waiting:
            self.histories[member.row.id] = histories
        return arriving

    def _known_rows(self, rows: Iterable[MessageRow]) -> Iterator[MessageRow]:
        for row in rows:
            if row.is_known:
                yield row
            else:
                self.unknown[row.role] = self.unknown.get(row.role, 0) + 1

    def _parent_histories(self, member: LinkedSession) -> list[VisibleHistory]:
        if member.parent is None:
            return []
        histories = self.histories.get(member.parent, [])
        self.waiting[member.parent] -= 1
        if not self.waiting[member.parent]:
            self.histories.pop(member.parent, None)
        return histories

    def _turns(
        self, row: SessionRow, start: _Start, session_id: str, *, last: bool
    ) -> tuple[tuple[TurnLine, ...], list[TurnRows]]:
        own = list(turns_of(start.rows))
        if own and last and row.ended_at is None and own[-1].may_grow(self.now):
            own.pop()
            self.unfinished += 1
        return tuple(asked.line(session_id, start.base + n) for n, asked in enumerate(own, 1)), own


def our_id(session_id: str, part: int = 0) -> str:
    """Return Hermes's id if it is a valid id here, else a hash of it."""
    if not _ID.match(session_id) or len(session_id) > ID_CHARS_MAX - _ROOM:
        session_id = f"hermes-{hashlib.sha256(session_id.encode(errors='replace')).hexdigest()[:24]}"
    return f"{session_id}.{part + 1}" if part else session_id


def _find_parent_history(
    member: LinkedSession, rows: Sequence[MessageRow], histories: Sequence[VisibleHistory]
) -> VisibleHistory | None:
    """Return the parent as it was at the start of the session, which never saw later changes."""
    at = member.row.started_at
    begun = [history for history in histories if history.since <= at] or histories[:1]
    if not begun or member.relation not in (Relation.BRANCH, Relation.OTHER):
        return begun[-1] if begun else None
    # Copied messages are better evidence than the clock.
    return max(histories, key=lambda history: (_count_shared(history, rows), history is begun[-1]))


def _count_shared(before: VisibleHistory, rows: Sequence[MessageRow]) -> int:
    """Return the number of leading rows that the parent shows too."""
    same = 0
    while same < min(len(before.shown), len(rows)) and before.shown[same].key == key_of(rows[same]):
        same += 1
    return same


def _begin(member: LinkedSession, before: VisibleHistory | None, rows: Sequence[MessageRow]) -> _Start:
    match member.relation:
        case Relation.COMPRESSION if before is not None:
            return _begin_continuation(before.up_to(member.row.started_at), rows, Cause.COMPRESSION)
        case Relation.BRANCH | Relation.OTHER if before is not None:
            return _begin_branch(member.relation, before, rows)
        case Relation.DELEGATE:
            return _Start(rows, Cause.DELEGATION, before.session_id if before is not None else None)
        case _:
            return _Start(rows)


def _begin_branch(relation: Relation, before: VisibleHistory, rows: Sequence[MessageRow]) -> _Start:
    same = _count_shared(before, rows)
    if same < len(before.shown):
        # Only complete turns are shared.
        turn = before.shown[same].turn
        while same and before.shown[same - 1].turn == turn:
            same -= 1
    # Rewound turns may follow the last shared turn. Later turns of the parent have higher numbers.
    base = before.shown[same - 1].turn if same else 0
    if not same or base <= before.floor or any(before.floor < number <= base for number in before.hidden):
        cause = Cause.BRANCH if relation is Relation.BRANCH else Cause.NEW
        return _Start(rows, cause, before.session_id)
    return _Start(
        rows[same:],
        Cause.BRANCH,
        before.session_id,
        base,
        before.floor,
        summary_of=before.summary_of,
        shown=before.shown[:same],
    )


def _begin_continuation(before: VisibleHistory | None, rows: Sequence[MessageRow], cause: Cause) -> _Start:
    assert before is not None
    found = read_continuation(before.shown, before.floor, before.last_turn, rows)
    if found.summary is not None and any(found.floor < number <= before.last_turn for number in before.hidden):
        # Keep the copies as own rows: some of the turns that would be shared are hidden in the parent.
        found = read_continuation((), before.last_turn, before.last_turn, rows)
    return _Start(found.rows, cause, before.session_id, before.last_turn, found.floor, found.summary, None, found.shown)


def _history(session_id: str, start: _Start, own: Sequence[TurnRows], since: float) -> VisibleHistory:
    shown = list(start.shown)
    hidden: set[int] = set()
    for number, asked in enumerate(own, start.base + 1):
        if asked.hidden:
            hidden.add(number)
        else:
            shown += [VisibleMessage(key_of(row), number, row.at) for row in asked.rows]
    summary_of = session_id if start.summary is not None else start.summary_of
    last = start.base + len(own)
    return VisibleHistory(session_id, tuple(shown), last, start.floor, summary_of, frozenset(hidden), since)


def _line(
    member: LinkedSession,
    place: Destination,
    session_id: str,
    start: _Start,
    turns: Sequence[TurnLine],
    compressed_at: float | None,
    opened_at: float,
) -> SessionLine:
    row = member.row
    ended_at, end_reason = (compressed_at, "compressed") if compressed_at is not None else _end(row)
    return SessionLine(
        session_id,
        place.owner,
        str(place.key),
        opened_at,
        max((turn.at for turn in turns), default=opened_at),
        SessionKind.SUBAGENT
        if member.relation is Relation.DELEGATE
        else SessionKind.CRON
        if row.source == "cron"
        else SessionKind.CHAT,
        start.cause,
        _title(row.title) if session_id == our_id(row.id) else None,
        ended_at=ended_at,
        end_reason=end_reason,
        parent=start.parent,
        base=Base(start.base),
        floor=start.floor,
        summary=start.summary,
        summary_of=start.summary_of if start.summary is None else None,
    )


def _end(row: SessionRow) -> tuple[float | None, str | None]:
    if row.ended_at is None:
        return None, None
    return row.ended_at, re.sub(r"[^a-z]+", "_", (row.end_reason or "").lower()).strip("_")[:100] or "ended"


def _title(written: str | None) -> str | None:
    if written is not None:
        for chars_max in (10 * titles.TITLE_CHARS_MAX, titles.TITLE_CHARS_MAX):
            with suppress(BadTitle):
                return titles.clean(written[:chars_max])
    return None
