"""Export sessions: read them from the store and yield the lines of an export file, a batch of turns at a time.

This module never writes to the store. `domain.export_format` defines the lines.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from msgspec import Struct

from everthread.domain.events import EntryKind, LogEntry
from everthread.domain.export_format import (
    SESSIONS_MAX,
    VERSION,
    AnyLine,
    Base,
    CallLine,
    DelegationLine,
    EndLine,
    Header,
    Item,
    MessageLine,
    NoteLine,
    RewindLine,
    SessionLine,
    TurnLine,
)
from everthread.domain.model import Message, NoteTarget, Session, Turn
from everthread.lifecycle.lineage import drop_inherited, nearest_ancestor, rewound_turns
from everthread.lifecycle.session_lookup import find_session_of_any_owner
from everthread.store.unit_of_work import Store, UnitOfWork

TIME_MAX = 253_402_300_799.0


class Marker(Struct, frozen=True):
    """A rewind or delegation line, and the number of the turn that it follows."""

    behind: int
    line: RewindLine | DelegationLine


class SessionSnapshot(Struct, frozen=True):
    """Snapshot of a session: its line, its markers, its last turn and the turns that rewinds hid."""

    line: SessionLine
    markers: tuple[Marker, ...]
    last_turn: int
    undone: frozenset[int]


def select_sessions(uow: UnitOfWork, names: Sequence[str]) -> list[Session]:
    """Return the named sessions and the ancestors whose turns they show; every conversation if `names` is empty."""
    if not names:
        everything = uow.sessions.conversations(SESSIONS_MAX, delegated=True)
        return parents_first(everything, _parents(uow, everything))
    found: dict[str, Session] = {}
    for name in names:
        session: Session | None = find_session_of_any_owner(uow, name)
        while session is not None and session.id not in found:
            found[session.id] = session
            session = _needed_parent(uow, session)
    return parents_first(tuple(found.values()), _parents(uow, tuple(found.values())))


def _parents(uow: UnitOfWork, sessions: Sequence[Session]) -> dict[str, str | None]:
    """Map each session to its nearest ancestor that was not forgotten, or to None."""
    known = {session.id for session in sessions}
    parents: dict[str, str | None] = {}
    for session in sessions:
        parents[session.id] = session.parent_id
        if session.parent_id is not None and session.parent_id not in known:
            parent = nearest_ancestor(uow, session).parent
            parents[session.id] = parent.id if parent is not None else None
    return parents


def parents_first(sessions: Sequence[Session], parents: Mapping[str, str | None]) -> list[Session]:
    """Sort parents before their children, otherwise by id."""
    known = {session.id for session in sessions}
    depth: dict[str, int] = {}
    for session in sessions:
        line: list[str] = []
        at: str | None = session.id
        while at in known and at not in depth:
            line.append(at)
            at = parents[at]
        base = depth.get(at or "", 0)
        for step, session_id in enumerate(reversed(line), 1):
            depth[session_id] = base + step
    return sorted(sessions, key=lambda session: (depth[session.id], session.id))


def read_snapshot(uow: UnitOfWork, session_id: str, included: frozenset[str]) -> SessionSnapshot | None:
    """Read a session's snapshot; None if it was forgotten meanwhile.

    `included` are the sessions that precede it in the file.
    """
    session = uow.sessions.get(session_id)
    if session is None or session.forgotten_seq is not None:
        return None
    line = _session_line(uow, session, included)
    entries = (*uow.log.of_kind(session_id, EntryKind.REWIND), *uow.log.of_kind(session_id, EntryKind.DELEGATION))
    ordered = sorted(entries, key=lambda entry: entry.seq)
    markers = tuple(m for m in (_marker(uow, session, line.base.turn, entry) for entry in ordered) if m is not None)
    undone = frozenset(n for m in markers if isinstance(m.line, RewindLine) for n in m.line.turns)
    return SessionSnapshot(line, markers, session.last_turn, undone)


def items(
    head: SessionSnapshot, turns: Sequence[Turn], chats: Mapping[int, str], after: int, *, last: bool
) -> Iterator[Item]:
    """Yield the lines of a batch of turns and the markers among them. `last` marks the last batch."""
    markers = [marker for marker in head.markers if marker.behind >= after or after == 0]
    for turn in turns:
        while markers and markers[0].behind < turn.number:
            yield markers.pop(0).line
        yield _turn_line(turn, chats.get(turn.number), hidden=turn.number in head.undone)
    yield from (marker.line for marker in markers if last)


def read_notes(uow: UnitOfWork, owners: Sequence[str]) -> list[NoteLine]:
    """Return the current notes of these owners."""
    return [
        NoteLine(note.note_id, note.owner, note.target, note.content, _time(note.at))
        for owner in owners
        for target in NoteTarget
        for note in uow.notes.current(owner, target)
    ]


def _needed_parent(uow: UnitOfWork, session: Session) -> Session | None:
    """Return the nearest ancestor that was not forgotten, if the session shows its turns."""
    seen = nearest_ancestor(uow, session)
    return seen.parent if seen.turn > session.floor else None


def _session_line(uow: UnitOfWork, session: Session, included: frozenset[str]) -> SessionLine:
    seen = nearest_ancestor(uow, session)
    parent_id = seen.parent.id if seen.parent is not None and seen.parent.id in included else None
    if parent_id is None:
        # The turns of a parent that is not in the file can't be shown.
        base, floor = Base(session.base_turn), session.base_turn
    else:
        rewinds = sum(entry.seq <= seen.seq for entry in uow.log.of_kind(parent_id, EntryKind.REWIND))
        base, floor = Base(seen.turn, rewinds), min(session.floor, seen.turn)
    elsewhere = session.summary_id not in (None, session.id) and session.summary_id in included
    return SessionLine(
        id=session.id,
        owner=session.owner,
        key=str(session.key),
        opened_at=_time(session.opened_at),
        active_at=_time(session.active_at),
        kind=session.kind,
        cause=session.cause,
        title=session.title,
        generation=session.generation,
        ended_at=_time(session.ended_at) if session.ended_at is not None else None,
        end_reason=session.end_reason,
        parent=parent_id,
        base=base,
        floor=floor,
        summary=None if elsewhere else uow.turns.view(session, up_to=0).summary,
        summary_of=session.summary_id if elsewhere else None,
    )


def _marker(uow: UnitOfWork, session: Session, base: int, entry: LogEntry) -> Marker | None:
    """Build the marker of a log entry; None if every turn of a rewind was forgotten."""
    detail = entry.detail or {}
    if entry.kind is EntryKind.REWIND:
        turns = drop_inherited(rewound_turns(detail), base, session)
        if not turns:
            return None
        line: RewindLine | DelegationLine = RewindLine(session.id, _time(entry.at), turns)
    else:
        texts = {name: str(detail.get(name, "")) for name in ("task", "result", "child")}
        line = DelegationLine(session.id, _time(entry.at), **texts)
    return Marker(_turn_before(uow, session, entry.seq), line)


def _turn_before(uow: UnitOfWork, session: Session, seq: int) -> int:
    while seq > 1:
        seq -= 1
        entry = uow.log.entry(session.id, seq)
        if entry is not None and entry.number is not None:
            return entry.number
    return 0


def _turn_line(turn: Turn, chat: str | None, *, hidden: bool) -> TurnLine:
    messages = tuple(_message_line(message) for message in turn.messages)
    return TurnLine(turn.session_id, turn.number, turn.turn_id, _time(turn.at), messages, turn.status, hidden, chat)


def _message_line(message: Message) -> MessageLine:
    calls = tuple(CallLine(call.id, call.name, call.arguments) for call in message.tool_calls)
    return MessageLine(message.role, message.content, calls, message.tool_call_id, message.name, message.reasoning)


def _time(at: float) -> float:
    """Clamp a time to the range of the export format, because a wrong clock may have written any number."""
    return min(max(at, 0.0), TIME_MAX) if math.isfinite(at) else 0.0


_TURNS_AT_ONCE = 200


async def export_lines(
    store: Store, sessions: Sequence[Session], now: float, program: str, *, with_notes: bool = False
) -> AsyncGenerator[AnyLine, None]:
    """Yield every line of an export file. `sessions` must be in the order of `select_sessions`."""
    count = turns = 0
    yield Header(VERSION, now, program)
    included: set[str] = set()
    for session in sessions:
        before = frozenset(included)
        head = await store.read(lambda uow, s=session.id, b=before: read_snapshot(uow, s, b))
        if head is None:
            continue
        yield head.line
        included.add(session.id)
        count += 1
        after = 0
        while True:
            some, last, after = await _next_items(store, session.id, head, after)
            for item in some:
                yield item
            turns += sum(isinstance(item, TurnLine) for item in some)
            if last:
                break
    owners = sorted({session.owner for session in sessions if session.id in included})
    notes = await store.read(lambda uow: read_notes(uow, owners)) if with_notes else []
    for note in notes:
        yield note
    yield EndLine(count, turns, len(notes))


async def _next_items(store: Store, session_id: str, head: SessionSnapshot, after: int) -> tuple[list[Item], bool, int]:
    """Return the lines of the next turns, True if they are the last, and the number of the last turn read."""

    def read(uow: UnitOfWork) -> tuple[tuple[Turn, ...], dict[int, str]]:
        turns = uow.turns.own_turns(session_id, after=after, up_to=head.last_turn, limit=_TURNS_AT_ONCE)
        return turns, uow.turns.chats(session_id, after=after, up_to=turns[-1].number) if turns else {}

    some, chats = await store.read(read)
    last = len(some) < _TURNS_AT_ONCE
    return list(items(head, some, chats, after, last=last)), last, some[-1].number if some else after
