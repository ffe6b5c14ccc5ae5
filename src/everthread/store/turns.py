"""Turns and what is found in them, as the store keeps them.

Turns and their messages, what a session shows of its lineage, stored prefixes, and the full-text index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct

from everthread.domain.errors import TooLarge
from everthread.domain.events import View
from everthread.domain.model import Kind, Message, Prefix, Role, Session, ToolCall, Turn, TurnStatus
from everthread.store.search_index import (
    WORD_HITS_MAX,
    brevity,
    index_text,
    match_all,
    match_query,
    owner_token,
    question_phrases,
    shares,
)
from everthread.store.session_list import SHOWN, shown_turns
from everthread.store.sessions import SessionTables
from everthread.store.sql import Execute, added, by_value, first, from_json, run, to_json


class Hit(Struct, frozen=True):
    """A message that a search found, with where it stands."""

    session_id: str
    number: int
    index: int
    role: str
    content: str
    at: float
    score: float = 0.0
    """From 0 to 1 how much it has to do with a question; of other searches 0."""


class Turns(Protocol):
    def add(
        self,
        session: Session,
        number: int,
        turn_id: str,
        status: TurnStatus,
        messages: Sequence[Message],
        at: float,
    ) -> None: ...
    def view(self, session: Session, *, as_of_seq: int | None = None, up_to: int | None = None, after: int = 0) -> View:
        """What the session shows, of the turns numbered `after + 1 .. up_to`."""
        ...

    def view_for_people(self, session: Session, *, up_to: int | None = None, after: int = 0) -> View:
        """The same, and among its turns the messages that were set aside: whoever wrote them looks for them."""
        ...

    def last_visible(self, session: Session, count: int) -> tuple[int, ...]: ...
    def count(self, session: Session) -> int:
        """How many turns the session shows, inherited ones included, without reading them."""
        ...

    def get(self, session_id: str, number: int) -> Turn | None: ...
    def asked(self, session_id: str, limit: int, chars_max: int = 10_000) -> tuple[tuple[float, str], ...]:
        """What the session's own turns began with and when, the latest first; nothing longer than that."""
        ...

    def own(self, session_id: str, *, after: int, up_to: int, limit: int) -> tuple[Turn, ...]:
        """The session's own turns, of whatever status and shown or not."""
        ...

    def number(self, session_id: str, turn_id: str) -> int | None:
        """Which turn of the session that is; none if it was not committed there."""
        ...

    def hide(self, session: Session, numbers: Sequence[int], seq: int) -> None: ...
    def put_prefix(self, prefix: Prefix, owner: str) -> None: ...
    def prefix(self, session_id: str) -> Prefix | None: ...
    def prefix_number(self, session_id: str) -> int:
        """The number of the session's newest prefix, without reading it; 0 if there is none."""
        ...

    def index(self) -> None:
        """Make the words of all messages searchable; it is also done now and then when turns are added."""
        ...

    def is_indexed(self, owner: str | None = None, beside: str | None = None) -> bool:
        """Whether the words of all messages are searchable, or of the owner's, leaving out the session `beside`."""
        ...

    def search(self, owner: str, query: str, *, limit: int, ranked: bool = False) -> tuple[Hit, ...]:
        """The owner's messages that hold all terms of the query, newest or best first; none of an undone turn."""
        ...

    def is_anything_beside(self, owner: str, session: Session) -> bool:
        """Whether the owner may have said anything that the session does not show; said without looking far."""
        ...

    def recall(self, owner: str, question: str, *, limit: int, beside: Session | None = None) -> tuple[Hit, ...]:
        """What was said that has to do with a question as people ask it, best first, one message of a turn.

        A message counts by how many of the question's telling words it holds, how rare they are, and how short it is.
        Only what a person or the model said in a chat; not what was undone or set aside; nothing of what the session
        `beside` shows, nor of what was undone there.
        """
        ...


MESSAGES_PER_TURN = 4096
RANKED_MAX = 5000
RECALLED_MAX = 2000
RECALLED_AT_ONCE = 30
SESSIONS_AT_ONCE = 100
ROWS_PER_INSERT = 16
# The index writes a segment each time it is fed, and merges them later: words of several turns at once cost it half.
TURNS_PER_INDEXING = 128
_ROLES = by_value(Role)
_STATUSES = by_value(TurnStatus)
_SHOWN_TO_PEOPLE = f"({SHOWN} OR status = '{TurnStatus.SET_ASIDE.value}')"
_REMEMBERED = ", ".join(f"'{kind.value}'" for kind in Kind if kind.remembered)


class _Segment(Struct, frozen=True):
    """A run of turns that one session of the lineage owns and the viewer shows, unless hidden."""

    session_id: str
    after: int
    up_to: int

    def holds(self, number: int) -> bool:
        return self.after < number <= self.up_to


_NOTHING = _Segment("", 0, 0)


class TurnTables:
    def __init__(self, execute: Execute, sessions: SessionTables) -> None:
        self._execute = execute
        self._sessions = sessions
        self.is_behind = False
        """Whether so many turns have been added that their words should be indexed."""

    def add(
        self,
        session: Session,
        number: int,
        turn_id: str,
        status: TurnStatus,
        messages: Sequence[Message],
        at: float,
    ) -> None:
        if len(messages) > MESSAGES_PER_TURN:
            raise TooLarge(f"a turn has at most {MESSAGES_PER_TURN} messages; this one has {len(messages)}")
        run(
            self._execute(
                "INSERT INTO turns (session_id, number, turn_id, owner, status, at) VALUES (?, ?, ?, ?, ?, ?)",
                (session.id, number, turn_id, session.owner, status, at),
            )
        )
        row_id = added(self._execute)
        numbered = enumerate(messages, row_id * MESSAGES_PER_TURN)
        rows = ((number, session.owner, m.role, m.content, _extra(m)) for number, m in numbered)
        # Many rows with few statements: each costs more than the row it writes.
        for values, given in _together(rows):
            run(self._execute(f"INSERT INTO messages (id, owner, role, content, extra) VALUES {values}", given))
        self.is_behind = self.is_behind or row_id % TURNS_PER_INDEXING == 0

    def index(self) -> None:
        rows = self._execute(
            f"SELECT id, content, owner FROM messages WHERE id >= (SELECT turn + 1 FROM indexed) * {MESSAGES_PER_TURN} "
            "AND content <> ''"
        )
        # One by one: a statement of several rows opens a savepoint, and at each the index writes a segment of its own.
        for number, content, owner in list(rows):
            words = (number, index_text(content), owner_token(owner))
            run(self._execute("INSERT INTO message_words (rowid, text, scope) VALUES (?, ?, ?)", words))
        run(self._execute("UPDATE indexed SET turn = (SELECT COALESCE(MAX(id), 0) FROM turns)"))
        self.is_behind = False

    def is_indexed(self, owner: str | None = None, beside: str | None = None) -> bool:
        rows = self._execute(
            "SELECT 1 FROM turns WHERE id > (SELECT turn FROM indexed) AND owner = COALESCE(?, owner) "
            "AND session_id IS NOT ? LIMIT 1",
            (owner, beside),
        )
        return first(rows) is None

    def view(self, session: Session, *, as_of_seq: int | None = None, up_to: int | None = None, after: int = 0) -> View:
        """What the session shows; `as_of_seq` and `up_to` give the view as it was at an earlier log position."""
        return self._view(session, self._lineage(session, as_of_seq, up_to, after), SHOWN)

    def view_for_people(self, session: Session, *, up_to: int | None = None, after: int = 0) -> View:
        return self._view(session, self._lineage(session, None, up_to, after), _SHOWN_TO_PEOPLE)

    def _view(self, session: Session, lineage: tuple[list[_Segment], frozenset[int]], shown: str) -> View:
        segments, hidden = lineage
        turns: list[Turn] = []
        for segment in reversed(segments):
            turns += self._turns(segment, hidden, inherited=segment.session_id != session.id, shown=shown)
        return View(self._summary(session), tuple(turns))

    def last_visible(self, session: Session, count: int) -> tuple[int, ...]:
        segments, hidden = self._lineage(session, None, None)
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
        return shown_turns(self._execute, session)

    def hide(self, session: Session, numbers: Sequence[int], seq: int) -> None:
        for number in numbers:
            run(
                self._execute(
                    "INSERT INTO hidden (session_id, number, seq) VALUES (?, ?, ?)", (session.id, number, seq)
                )
            )

    def get(self, session_id: str, number: int) -> Turn | None:
        return next(
            self._turns(_Segment(session_id, number - 1, number), frozenset(), inherited=False, shown="1"), None
        )

    def asked(self, session_id: str, limit: int, chars_max: int = 10_000) -> tuple[tuple[float, str], ...]:
        rows = self._execute(
            "SELECT t.at, m.content FROM turns t JOIN messages m ON m.id = t.id * ? "
            "WHERE t.session_id = ? AND m.role = ? AND length(m.content) BETWEEN 1 AND ? "
            "ORDER BY t.number DESC LIMIT ?",
            (MESSAGES_PER_TURN, session_id, Role.USER.value, chars_max, limit),
        )
        return tuple((at, content) for at, content in rows)

    def own(self, session_id: str, *, after: int, up_to: int, limit: int) -> tuple[Turn, ...]:
        row = first(
            self._execute(
                "SELECT MAX(number) FROM (SELECT number FROM turns WHERE session_id = ? AND number > ? "
                "AND number <= ? ORDER BY number LIMIT ?) AS some",
                (session_id, after, up_to, limit),
            )
        )
        if row is None or row[0] is None:
            return ()
        return tuple(self._turns(_Segment(session_id, after, row[0]), frozenset(), inherited=False, shown="1"))

    def number(self, session_id: str, turn_id: str) -> int | None:
        row = first(
            self._execute("SELECT number FROM turns WHERE session_id = ? AND turn_id = ?", (session_id, turn_id))
        )
        return row[0] if row else None

    def size(self, session_id: str, number: int) -> int:
        """How many bytes a turn's messages have, without reading them."""
        row = first(
            self._execute(
                "SELECT COALESCE(SUM(octet_length(m.content) + COALESCE(octet_length(m.extra), 0)), 0) FROM turns t "
                f"JOIN messages m ON m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN} "
                "WHERE t.session_id = ? AND t.number = ?",
                (session_id, number),
            )
        )
        assert row is not None
        return row[0]

    def put_prefix(self, prefix: Prefix, owner: str) -> None:
        run(
            self._execute(
                "INSERT INTO prefixes (session_id, number, owner, content, at) VALUES (?, ?, ?, ?, ?)",
                (prefix.session_id, prefix.number, owner, prefix.content, prefix.at),
            )
        )

    def prefix(self, session_id: str) -> Prefix | None:
        row = first(
            self._execute(
                "SELECT session_id, number, content, at FROM prefixes WHERE session_id = ? "
                "ORDER BY number DESC LIMIT 1",
                (session_id,),
            )
        )
        return Prefix(*row) if row else None

    def prefix_number(self, session_id: str) -> int:
        row = first(self._execute("SELECT COALESCE(MAX(number), 0) FROM prefixes WHERE session_id = ?", (session_id,)))
        assert row is not None
        return row[0]

    def search(self, owner: str, query: str, *, limit: int, ranked: bool = False) -> tuple[Hit, ...]:
        match = match_query(query, owner)
        if match is None:
            return ()
        wanted = limit
        while True:
            rows = self._found(match, owner, wanted, ranked)
            undone = self._undone({row[0] for row in rows})
            shown = [row for row in rows if row[6] != TurnStatus.HIDDEN and row[:2] not in undone]
            if len(shown) >= limit or len(rows) < wanted:
                return tuple(Hit(row[0], row[1], row[2] % MESSAGES_PER_TURN, *row[3:6]) for row in shown[:limit])
            # Some of what was found was undone: look further, which costs no more than the same search again.
            wanted *= 4

    def _found(self, match: str, owner: str, limit: int, ranked: bool) -> list[tuple[Any, ...]]:
        # Ranking costs by the match: of a word that is everywhere, the newest are the ones worth weighing up.
        found = (
            "SELECT id, score FROM (SELECT rowid AS id, bm25(message_words, 1.0, 0.0) AS score FROM message_words "
            f"WHERE message_words MATCH ? ORDER BY rowid DESC LIMIT {RANKED_MAX}) ORDER BY score, id DESC LIMIT ?"
            if ranked
            else "SELECT rowid AS id, 0 AS score FROM message_words WHERE message_words MATCH ? "
            "ORDER BY rowid DESC LIMIT ?"
        )
        rows = self._execute(
            f"SELECT t.session_id, t.number, m.id, m.role, m.content, t.at, t.status FROM ({found}) AS found "
            f"JOIN messages m ON m.id = found.id JOIN turns t ON t.id = m.id / {MESSAGES_PER_TURN} "
            "WHERE m.owner = ? ORDER BY found.score, m.id DESC",
            (match, limit, owner),
        )
        return list(rows)

    def recall(self, owner: str, question: str, *, limit: int, beside: Session | None = None) -> tuple[Hit, ...]:
        if beside and not self.is_anything_beside(owner, beside):
            return ()
        candidates = shares(self._word_hits(owner, question_phrases(question)), MESSAGES_PER_TURN)
        seen = self._lineage(beside, None, None)[0] if beside else []
        inherited = {part.session_id: part for part in seen[1:]}
        chosen: dict[tuple[str, int], tuple[float, int]] = {}
        for start in range(0, min(len(candidates), RECALLED_MAX), RECALLED_AT_ONCE):
            found = self._weighed(owner, candidates[start:][:RECALLED_AT_ONCE], seen[0] if seen else _NOTHING)
            undone = self._undone({session_id for _, _, session_id, _ in found})
            for score, message_id, session_id, number in found:
                if session_id in inherited and inherited[session_id].holds(number):
                    continue
                if (session_id, number) not in undone:
                    chosen.setdefault((session_id, number), (score, message_id))
                if len(chosen) == limit:
                    return self._scored(chosen.values())
        return self._scored(chosen.values())

    def is_anything_beside(self, owner: str, session: Session) -> bool:
        if session.owner != owner or session.floor > session.base_turn:
            return True
        others = "SELECT 1 FROM sessions WHERE owner = ? AND id <> ? AND last_turn > base_turn LIMIT 1"
        return first(self._execute(others, (owner, session.id))) is not None

    def _word_hits(self, owner: str, phrases: list[str]) -> list[list[int]]:
        """For each phrase the newest messages that hold it. Two common ones are looked for together as well."""

        def newest(*wanted: str) -> list[int]:
            rows = self._execute(
                "SELECT rowid FROM message_words WHERE message_words MATCH ? "
                f"ORDER BY rowid DESC LIMIT {WORD_HITS_MAX}",
                (match_all(wanted, owner),),
            )
            return [row[0] for row in rows]

        found = [newest(phrase) for phrase in phrases]
        common = [n for n, ids in enumerate(found) if len(ids) == WORD_HITS_MAX][:2]
        if len(common) > 1:
            together = newest(*(phrases[n] for n in common))
            for n in common:
                found[n] = list({*found[n], *together})
        return found

    def _weighed(self, owner: str, some: list[tuple[float, int]], seen: _Segment) -> list[tuple[float, int, str, int]]:
        """Of these messages those that a person or the model said in a chat, best first: score, id, session, turn.

        Without those of the turns that are seen: in a long conversation these are most, and no more is read of them.
        """
        share_of = {message_id: share for share, message_id in some}
        values = ", ".join(["(?)"] * len(some))
        rows = self._execute(
            f"WITH candidates (id) AS (VALUES {values}) "
            "SELECT m.id, t.session_id, t.number, octet_length(m.content) FROM candidates c "
            f"JOIN turns t ON t.id = c.id / {MESSAGES_PER_TURN} JOIN messages m ON m.id = c.id "
            "JOIN sessions s ON s.id = t.session_id "
            f"WHERE t.owner = ? AND t.{SHOWN} AND NOT (t.session_id = ? AND t.number > ? AND t.number <= ?) "
            f"AND m.owner = ? AND m.role IN ('user', 'assistant') AND s.kind IN ({_REMEMBERED})",
            (*share_of, owner, seen.session_id, seen.after, seen.up_to, owner),
        )
        return sorted(
            ((share_of[row[0]] * brevity(row[3]), row[0], row[1], row[2]) for row in rows),
            reverse=True,
        )

    def _undone(self, session_ids: Collection[str]) -> frozenset[tuple[str, int]]:
        """The turns of these sessions that were taken back, there or in a continuation."""
        found: set[tuple[str, int]] = set()
        ids = iter(session_ids)
        while some := list(islice(ids, SESSIONS_AT_ONCE)):
            found.update(self._undone_of(some))
        return frozenset(found)

    def _undone_of(self, session_ids: list[str]) -> Iterator[tuple[str, int]]:
        values = ", ".join("?" * len(session_ids))
        # A continuation may have turns of its own under the numbers that came later in the session.
        rows = self._execute(
            "WITH RECURSIVE line (root, id, up_to) AS ("
            f"SELECT id, id, 9223372036854775807 FROM sessions WHERE id IN ({values}) UNION ALL "
            "SELECT line.root, s.id, CASE WHEN s.base_turn < line.up_to THEN s.base_turn ELSE line.up_to END "
            "FROM line JOIN sessions s ON s.parent_id = line.id AND s.cause = 'compression') "
            # The other way round, all that was ever taken back would be read.
            "SELECT line.root, h.number FROM line CROSS JOIN hidden h "
            "WHERE h.session_id = line.id AND h.number <= line.up_to",
            session_ids,
        )
        return ((row[0], row[1]) for row in rows)

    def _scored(self, chosen: Collection[tuple[float, int]]) -> tuple[Hit, ...]:
        if not chosen:
            return ()
        score_of = {message_id: score for score, message_id in chosen}
        values = ", ".join("?" * len(chosen))
        rows = self._execute(
            "SELECT t.session_id, t.number, m.id, m.role, m.content, t.at FROM messages m "
            f"JOIN turns t ON t.id = m.id / {MESSAGES_PER_TURN} WHERE m.id IN ({values})",
            list(score_of),
        )
        best_first = sorted(rows, key=lambda row: (score_of[row[2]], row[2]), reverse=True)
        return tuple(
            Hit(row[0], row[1], row[2] % MESSAGES_PER_TURN, *row[3:6], score=score_of[row[2]]) for row in best_first
        )

    def _lineage(
        self, session: Session, as_of_seq: int | None, up_to: int | None, after: int = 0
    ) -> tuple[list[_Segment], frozenset[int]]:
        """The segments of a view, newest first, and the turn numbers hidden on the way to it.

        A hide counts for the sessions below it only if it was there when they branched off.
        """
        segments: list[_Segment] = []
        hidden: set[int] = set()
        floor = max(session.floor, after)
        top = session.last_turn if up_to is None else up_to
        seq = session.log_seq if as_of_seq is None else as_of_seq
        at: Session | None = session
        while at is not None and top > floor:
            segments.append(_Segment(at.id, max(at.base_turn, floor), top))
            rows = self._execute(
                "SELECT number FROM hidden WHERE session_id = ? AND seq <= ? AND number > ?",
                (at.id, seq, floor),
            )
            hidden.update(row[0] for row in rows)
            top, seq = min(top, at.base_turn), at.base_seq
            at = self._sessions.get(at.parent_id) if at.parent_id else None
        return segments, frozenset(hidden)

    def _turns(
        self, segment: _Segment, hidden: frozenset[int], *, inherited: bool, shown: str = SHOWN
    ) -> Iterator[Turn]:
        rows = self._execute(
            "SELECT t.number, t.turn_id, t.status, t.at, m.role, m.content, m.extra FROM turns t "
            f"LEFT JOIN messages m ON m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN} "
            f"WHERE t.session_id = ? AND t.number > ? AND t.number <= ? AND {shown} ORDER BY t.number, m.id",
            (segment.session_id, segment.after, segment.up_to),
        )
        head: tuple[Any, ...] | None = None
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
        row = first(self._execute("SELECT content FROM summaries WHERE session_id = ?", (session.summary_id,)))
        return row[0] if row else None


def _together(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    """Placeholders and parameters for a few rows at a time."""
    rows = iter(rows)
    while some := list(islice(rows, ROWS_PER_INSERT)):
        values = ", ".join(["(" + ", ".join("?" * len(some[0])) + ")"] * len(some))
        yield values, [value for row in some for value in row]


def _turn(session_id: str, head: tuple[Any, ...], messages: list[Message], inherited: bool) -> Turn:
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
