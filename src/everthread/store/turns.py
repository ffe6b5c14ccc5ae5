"""Turns with their messages, the view that a session has of its lineage, and stored prompt prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from everthread.domain.errors import TooLarge
from everthread.domain.events import View
from everthread.domain.model import Message, Prefix, Role, Session, ToolCall, Turn, TurnStatus
from everthread.store.database import Database, Table
from everthread.store.session_list import SHOWN, shown_turns
from everthread.store.sessions import Sessions
from everthread.store.sql import Row, by_value, from_json, placeholders, to_json

MESSAGES_PER_TURN = 4096
"""A turn's messages have ids from the turn's id times this number up."""
ROWS_PER_INSERT = 16
TURNS_PER_INDEXING = 128
"""FTS5 writes a segment at each insertion and merges segments later: indexing many turns together halves the cost."""
_ROLES = by_value(Role)
_STATUSES = by_value(TurnStatus)
_SHOWN_TO_PEOPLE = f"({SHOWN} OR status = '{TurnStatus.SET_ASIDE.value}')"


class Segment(Struct, frozen=True):
    """A range of turns that one session of a lineage owns and the viewing session shows, unless hidden."""

    session_id: str
    after: int
    up_to: int

    def holds(self, number: int) -> bool:
        return self.after < number <= self.up_to


class Turns(Table):
    """Turns, hidden turns and prompt prefixes."""

    def __init__(self, database: Database, sessions: Sessions) -> None:
        super().__init__(database)
        self._sessions = sessions
        self.index_due = False
        """Enough turns were added since the last indexing to index them now."""

    def add(
        self,
        session: Session,
        number: int,
        turn_id: str,
        status: TurnStatus,
        messages: Sequence[Message],
        at: float,
        chat: str | None = None,
    ) -> None:
        """Store a turn with its messages, said in the group chat `chat`. Raise `TooLarge` if it has too many."""
        if len(messages) > MESSAGES_PER_TURN:
            raise TooLarge(f"A turn has at most {MESSAGES_PER_TURN} messages. This one has {len(messages)}.")
        row_id = self._database.insert(
            "INSERT INTO turns (session_id, number, turn_id, owner, status, at, chat) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (session.id, number, turn_id, session.owner, status, at, chat),
        )
        numbered = enumerate(messages, row_id * MESSAGES_PER_TURN)
        rows = ((number, session.owner, m.role, m.content, _extra(m)) for number, m in numbered)
        # A statement costs more than a row, so one statement writes many rows.
        for values, bindings in _batches(rows):
            self._execute(f"INSERT INTO messages (id, owner, role, content, extra) VALUES {values}", bindings)
        self.index_due = self.index_due or row_id % TURNS_PER_INDEXING == 0

    def view(self, session: Session, *, as_of_seq: int | None = None, up_to: int | None = None, after: int = 0) -> View:
        """Return the turns `after + 1 .. up_to` that the session shows, optionally as of an earlier log position."""
        return self._view(session, self.segments(session, as_of_seq, up_to, after), SHOWN)

    def view_with_set_aside(self, session: Session, *, up_to: int | None = None, after: int = 0) -> View:
        """Return the view with messages that were set aside, which their authors look for."""
        return self._view(session, self.segments(session, None, up_to, after), _SHOWN_TO_PEOPLE)

    def _view(self, session: Session, lineage: tuple[list[Segment], frozenset[int]], shown: str) -> View:
        segments, hidden = lineage
        turns: list[Turn] = []
        for segment in reversed(segments):
            turns += self._turns(segment, hidden, inherited=segment.session_id != session.id, shown=shown)
        return View(self._summary(session), tuple(turns))

    def last_visible(self, session: Session, count: int) -> tuple[int, ...]:
        """Return the numbers of the last `count` visible turns."""
        segments, hidden = self.segments(session, None, None)
        found: list[int] = []
        for segment in segments:
            rows = self._execute(
                f"SELECT number FROM turns WHERE session_id = ? AND number > ? AND number <= ? AND {SHOWN} "
                "ORDER BY number DESC LIMIT ?",
                (segment.session_id, segment.after, segment.up_to, count + len(hidden)),
            )
            found += [row[0] for row in rows if row[0] not in hidden]
            if len(found) >= count:
                break
        return tuple(sorted(found[:count]))

    def count(self, session: Session) -> int:
        """Count the turns that the session shows, inherited ones included."""
        return shown_turns(self._execute, session)

    def hide(self, session: Session, numbers: Sequence[int], seq: int) -> None:
        """Hide turns from the session's view, since the log position `seq`."""
        for number in numbers:
            self._execute("INSERT INTO hidden (session_id, number, seq) VALUES (?, ?, ?)", (session.id, number, seq))

    def get(self, session_id: str, number: int) -> Turn | None:
        return next(
            self._turns(Segment(session_id, number - 1, number), frozenset(), inherited=False, shown="true"), None
        )

    def user_messages(self, session_id: str, limit: int, chars_max: int = 10_000) -> tuple[tuple[float, str], ...]:
        """Return times and user messages of the session's own turns, the latest first, without long ones."""
        rows = self._execute(
            "SELECT t.at, m.content FROM turns t JOIN messages m ON m.id = t.id * ? "
            "WHERE t.session_id = ? AND m.role = ? AND length(m.content) BETWEEN 1 AND ? "
            "ORDER BY t.number DESC LIMIT ?",
            (MESSAGES_PER_TURN, session_id, Role.USER.value, chars_max, limit),
        )
        return tuple((at, content) for at, content in rows)

    def own_turns(self, session_id: str, *, after: int, up_to: int, limit: int) -> tuple[Turn, ...]:
        """Return the session's own turns with any status, hidden or not."""
        row = self._first(
            "SELECT MAX(number) FROM (SELECT number FROM turns WHERE session_id = ? AND number > ? "
            "AND number <= ? ORDER BY number LIMIT ?) AS page",
            (session_id, after, up_to, limit),
        )
        if row is None or row[0] is None:
            return ()
        return tuple(self._turns(Segment(session_id, after, row[0]), frozenset(), inherited=False, shown="true"))

    def number(self, session_id: str, turn_id: str) -> int | None:
        """Return the number of a turn of the session, or None if it was not committed there."""
        row = self._first("SELECT number FROM turns WHERE session_id = ? AND turn_id = ?", (session_id, turn_id))
        return row[0] if row else None

    def said_in(self, chat: str, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return those of the turns that were said in the group chat."""
        return tuple(
            turn
            for turn in turns
            if self._exists(
                "SELECT 1 FROM turns WHERE session_id = ? AND number = ? AND chat = ?",
                (turn.session_id, turn.number, chat),
            )
        )

    def chat(self, session_id: str, turn_id: str) -> tuple[str | None] | None:
        """Return the group chat of a turn, which is None in private; or None if the session has no such turn."""
        row = self._first("SELECT chat FROM turns WHERE session_id = ? AND turn_id = ?", (session_id, turn_id))
        return (row[0],) if row else None

    def chats(self, session_id: str, *, after: int, up_to: int) -> dict[int, str]:
        """Return the group chats of the session's own turns, by their numbers. Private turns have none."""
        rows = self._execute(
            "SELECT number, chat FROM turns WHERE session_id = ? AND number > ? AND number <= ? AND chat IS NOT NULL",
            (session_id, after, up_to),
        )
        return dict(rows)

    def has_other_chat(self, session_id: str, chat: str) -> bool:
        """Return whether the session has turns that were not said in the group chat."""
        return self._exists(
            "SELECT 1 FROM turns WHERE session_id = ? AND chat IS DISTINCT FROM ? LIMIT 1", (session_id, chat)
        )

    def size(self, session_id: str, number: int) -> int:
        """Return the size of a turn's messages in bytes, without reading them."""
        return self._value(
            "SELECT COALESCE(SUM(octet_length(m.content) + COALESCE(octet_length(m.extra), 0)), 0) FROM turns t "
            f"JOIN messages m ON m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN} "
            "WHERE t.session_id = ? AND t.number = ?",
            (session_id, number),
        )

    def prefix(self, session_id: str) -> Prefix | None:
        row = self._first(
            "SELECT session_id, number, content, at FROM prefixes WHERE session_id = ? ORDER BY number DESC LIMIT 1",
            (session_id,),
        )
        return Prefix(*row) if row else None

    def prefix_number(self, session_id: str) -> int:
        """Return the number of the session's newest prefix; 0 if there is none."""
        return self._value("SELECT COALESCE(MAX(number), 0) FROM prefixes WHERE session_id = ?", (session_id,))

    def segments(
        self, session: Session, as_of_seq: int | None, up_to: int | None, after: int = 0
    ) -> tuple[list[Segment], frozenset[int]]:
        """Return the segments of a view, newest first, and the hidden turn numbers.

        A turn hidden in a parent is hidden in a child only if it was hidden before the child branched off.
        """
        segments: list[Segment] = []
        hidden: set[int] = set()
        floor = max(session.floor, after)
        top = session.last_turn if up_to is None else up_to
        seq = session.log_seq if as_of_seq is None else as_of_seq
        at: Session | None = session
        while at is not None and top > floor:
            segments.append(Segment(at.id, max(at.base_turn, floor), top))
            rows = self._execute(
                "SELECT number FROM hidden WHERE session_id = ? AND seq <= ? AND number > ?",
                (at.id, seq, floor),
            )
            hidden.update(row[0] for row in rows)
            top, seq = min(top, at.base_turn), at.base_seq
            at = self._sessions.get(at.parent_id) if at.parent_id else None
        return segments, frozenset(hidden)

    def _turns(
        self, segment: Segment, hidden: frozenset[int], *, inherited: bool, shown: str = SHOWN
    ) -> Iterator[Turn]:
        rows = self._execute(
            "SELECT t.number, t.turn_id, t.status, t.at, m.role, m.content, m.extra FROM turns t "
            f"LEFT JOIN messages m ON m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN} "
            f"WHERE t.session_id = ? AND t.number > ? AND t.number <= ? AND {shown} ORDER BY t.number, m.id",
            (segment.session_id, segment.after, segment.up_to),
        )
        head: Row | None = None
        messages: list[Message] = []
        for row in rows:
            if head is None or row[0] != head[0]:
                if head is not None and head[0] not in hidden:
                    yield _turn(segment.session_id, head, messages, inherited)
                head, messages = row, []
            if row[4] is not None:
                messages.append(_message(*row[4:]))
        if head is not None and head[0] not in hidden:
            yield _turn(segment.session_id, head, messages, inherited)

    def _summary(self, session: Session) -> str | None:
        if session.summary_id is None:
            return None
        row = self._first("SELECT content FROM summaries WHERE session_id = ?", (session.summary_id,))
        return row[0] if row else None


def _batches(rows: Iterable[Row]) -> Iterator[tuple[str, list[Any]]]:
    """Yield placeholders and parameters for a few rows at a time."""
    rows = iter(rows)
    while some := list(islice(rows, ROWS_PER_INSERT)):
        values = ", ".join([f"({placeholders(len(some[0]))})"] * len(some))
        yield values, [value for row in some for value in row]


def _turn(session_id: str, head: Row, messages: list[Message], inherited: bool) -> Turn:
    return Turn(session_id, head[0], head[1], _STATUSES[head[2]], head[3], tuple(messages), inherited)


def _extra(message: Message) -> str | None:
    m = message
    if not (m.tool_calls or m.tool_call_id or m.name or m.reasoning):
        return None
    calls = [[call.id, call.name, call.arguments] for call in m.tool_calls]
    return to_json([calls, m.tool_call_id, m.name, m.reasoning])


def _message(role: str, content: str, extra: str | None) -> Message:
    if extra is None:
        return Message(_ROLES[role], content)
    calls, tool_call_id, name, reasoning = from_json(extra)
    return Message(_ROLES[role], content, tuple(ToolCall(*call) for call in calls), tool_call_id, name, reasoning)
