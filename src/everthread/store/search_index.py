"""The full-text index of messages: FTS5 tables, match expressions and ranking.

The index has the columns (text, scope) and the tokenizer TOKENIZER:

* text holds index_text(content), scope holds owner_token(owner). text comes first: FTS5 spends two more bytes on each
posting of a later column, a quarter of the index.
* Every MATCH comes from match_all, which binds one owner: isolation happens inside FTS5.
* unicode61 splits words at spaces. Runs of scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese;
Korean, whose particles stick to words) are indexed as overlapping pairs of characters, then the last character alone.
A part of a run is then a phrase of pairs, and a single character is a prefix of some token.

Changing index_text, owner_token or TOKENIZER requires a rebuild of the index.

Recall ranks messages like BM25 for words that occur once: a word counts by its rarity, and a long message counts less
than a short one. Matches in other messages of the same turn count half, so that turns with more of the words come
first.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice

from msgspec import Struct

from everthread.domain.errors import StoreError
from everthread.domain.model import FORGOTTEN, Session, SessionKind, TurnStatus
from everthread.domain.search_terms import begins_with_run, keywords, normalize, replace_runs, terms
from everthread.store.database import Database, Table
from everthread.store.session_list import SHOWN
from everthread.store.sql import Row, placeholders
from everthread.store.turns import MESSAGES_PER_TURN, Segment, Turns

# Marks are part of a word: Indic and Thai vowels are marks, and would split words.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* N* M*'"


def index_text(text: str) -> str:
    """Return the text column for a message's content. Accepts any str."""
    return text if text.isascii() else replace_runs(_pairs, normalize(text))


@lru_cache(maxsize=256)
def owner_token(owner: str) -> str:
    """Return the single token that stands for an owner, whatever characters the name has."""
    # 128 bits: two owners must never share a token, even when one may choose its name.
    return "o" + hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def match_query(query: str, owner: str) -> str | None:
    """Return the MATCH expression for the owner's messages with all terms of the query.

    Words are ANDed, "quoted text" is a phrase, a trailing * asks for a prefix. Everything else is plain text: the
    result is valid whatever the query. None if there is nothing to search for. Only the first MAX_QUERY_CHARS
    characters and MAX_QUERY_TERMS different terms count.
    """
    phrases = [_phrase(term, prefix) for term, prefix in terms(query)]
    return match_all(phrases, owner) if phrases else None


def match_all(phrases: Sequence[str], owner: str) -> str:
    """Return the MATCH expression for the owner's messages with all of these phrases."""
    return f'scope : "{owner_token(owner)}" AND text : ({" AND ".join(phrases)})'


def question_phrases(question: str) -> list[str]:
    """Return phrases to search for, one by one, from a question in natural language."""
    return [_phrase(term, prefix) for term, prefix in keywords(question)]


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    return f" {' '.join(map(str.__add__, text, text[1:]))} {text[-1]} "


def _phrase(term: str, prefix: bool) -> str:
    spread = replace_runs(_pairs, term).rstrip()
    if begins_with_run(term[-1]):
        # The run may continue in the message, so its last character must not be searched for alone.
        prefix = not begins_with_run(term[-2:-1])
        spread = spread if prefix else spread[:-2]
    return f'"{spread}"*' if prefix else f'"{spread}"'


# The number of newest messages read for a word. A word with as many is common and weighs least.
WORD_HITS_MAX = 100

_OCTETS = 400.0
_K1 = 1.2
_B = 0.3


def shares(found: Sequence[Sequence[int]], messages_per_turn: int) -> list[tuple[float, int]]:
    """Return each message's share of the question's weight, best first and newest first among equals.

    `found` has the ids of the messages that hold each of the words.
    """
    weights = [1 + math.log(WORD_HITS_MAX / min(len(ids), WORD_HITS_MAX)) if ids else 0.0 for ids in found]
    total = sum(weights)
    by_message: defaultdict[int, float] = defaultdict(float)
    by_turn: defaultdict[int, float] = defaultdict(float)
    for ids, weight in zip(found, weights, strict=True):
        for message_id in ids:
            by_message[message_id] += weight
        for turn in {message_id // messages_per_turn for message_id in ids}:
            by_turn[turn] += weight
    return sorted(
        ((own + by_turn[message_id // messages_per_turn]) / (2 * total), message_id)
        for message_id, own in by_message.items()
    )[::-1]


def brevity(octets: int) -> float:
    """Return the factor, at most one, by which the size of a message reduces its share."""
    return (1 + _K1 * (1 - _B)) / (1 + _K1 * (1 - _B + _B * octets / _OCTETS))


RANKED_MAX = 5000
RECALLED_MAX = 2000
IN_CHAT_MAX = 5000
RECALLED_AT_ONCE = 30
SESSIONS_AT_ONCE = 100
PURGE_PAGES = 200
TURNS_PER_BATCH = 500
OCTETS_PER_BATCH = 200_000
"""Text that is indexed in one transaction. A slow machine takes a tenth of a second for it."""
_OCTETS_PER_MESSAGE = 100
_REMEMBERED = ", ".join(f"'{kind.value}'" for kind in SessionKind if kind.remembered)
_NOTHING = Segment("", 0, 0)
_SEARCHABLE = f"content NOT IN ('', '{FORGOTTEN}')"


class SearchIndexDamaged(StoreError):
    """The index lacks messages that it must hold."""


class Hit(Struct, frozen=True):
    """A message that a search found."""

    session_id: str
    number: int
    index: int
    role: str
    content: str
    at: float
    score: float = 0.0
    """The relevance for a question, from 0 to 1; 0 in other searches."""


class SearchIndex(Table):
    """The index, fed with many turns at a time."""

    def __init__(self, database: Database, turns: Turns) -> None:
        super().__init__(database)
        self._turns = turns

    def index(self) -> None:
        """Index all new messages."""
        while self.index_batch():
            pass

    def index_batch(self) -> bool:
        """Index some of the new messages, whole turns. Return whether there are more.

        One transaction for a whole index would keep other writers waiting for seconds.
        """
        turns = self._execute(
            f"SELECT t.id, (SELECT COALESCE(SUM(octet_length(content) + {_OCTETS_PER_MESSAGE}), 0) FROM messages m "
            f"WHERE m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN}) FROM turns t "
            f"WHERE t.id > (SELECT turn FROM indexed) ORDER BY t.id LIMIT {TURNS_PER_BATCH}"
        )
        before = accumulate((octets for _, octets in turns), initial=0)
        batch = [turn for (turn, _), octets in zip(turns, before, strict=False) if octets < OCTETS_PER_BATCH]
        if batch:
            self._index_turns(batch[0], batch[-1])
        has_more = len(batch) < len(turns) or len(turns) == TURNS_PER_BATCH
        self._turns.index_due = has_more
        return has_more

    def _index_turns(self, first: int, last: int) -> None:
        rows = self._execute(
            f"SELECT id, content, owner FROM messages WHERE id >= ? AND id < ? AND {_SEARCHABLE} ORDER BY id",
            (first * MESSAGES_PER_TURN, (last + 1) * MESSAGES_PER_TURN),
        )
        # One by one: a statement with several rows opens a savepoint, at which FTS5 writes another segment.
        for number, content, owner in rows:
            words = (number, index_text(content), owner_token(owner))
            self._execute("INSERT INTO message_words (rowid, text, scope) VALUES (?, ?, ?)", words)
        self._execute("UPDATE indexed SET turn = ?", (last,))

    def clear(self) -> None:
        """Empty the index, even a damaged one. The next `index` fills it again."""
        self._execute("INSERT INTO message_words (message_words) VALUES ('delete-all')")
        self._execute("UPDATE indexed SET turn = 0")

    def find_damage(self, samples: int) -> str:
        """Look up some messages that the index must hold, the newest first. Return the first problem, or an empty text.

        FTS5 reports most damage itself, but takes overwritten records that have the form of an empty index for one.
        """
        end = self._value(f"SELECT (turn + 1) * {MESSAGES_PER_TURN} FROM indexed")
        first = self._value("SELECT COALESCE(MIN(id), 0) FROM messages")
        for number in range(samples):
            # Some before the position are enough: one is searchable unless most were forgotten.
            rows = self._execute(
                "SELECT id, owner FROM (SELECT id, owner, content FROM messages WHERE id < ? ORDER BY id DESC "
                f"LIMIT 20) AS some WHERE {_SEARCHABLE} ORDER BY id DESC LIMIT 1",
                (end - (end - first) * number // samples,),
            )
            if rows and not self._holds(*rows[0]):
                return f"message {rows[0][0]} is not in the search index"
        return ""

    def _holds(self, message_id: int, owner: str) -> bool:
        posting = "SELECT 1 FROM message_words WHERE message_words MATCH ? AND rowid = ?"
        size = "SELECT 1 FROM message_words_docsize WHERE id = ?"
        scope = f'scope : "{owner_token(owner)}"'
        return self._exists(posting, (scope, message_id)) and self._exists(size, (message_id,))

    def _check_after_no_hit(self) -> None:
        """Raise `SearchIndexDamaged` if a search found nothing because the index is empty."""
        if problem := self.find_damage(1):
            raise SearchIndexDamaged(problem)

    def count(self) -> int:
        """Return the number of indexed messages."""
        return self._value("SELECT COUNT(*) FROM message_words_docsize")

    def is_indexed(self, owner: str | None = None, beside: str | None = None) -> bool:
        """Return whether all messages are indexed, or all of the owner's outside the session `beside`."""
        rows = self._execute(
            "SELECT 1 FROM turns WHERE id > (SELECT turn FROM indexed) AND owner = COALESCE(?, owner) "
            "AND session_id IS DISTINCT FROM ? LIMIT 1",
            (owner, beside),
        )
        return not rows

    def search(
        self, owner: str, query: str, *, limit: int, ranked: bool = False, chat: str | None = None
    ) -> tuple[Hit, ...]:
        """Return the owner's messages with all terms of the query, newest or best first, without undone turns.

        With `chat`, only of that group chat, among the newest or best `IN_CHAT_MAX` of all.
        """
        match = match_query(query, owner)
        if match is None:
            return ()
        wanted = limit
        while True:
            rows = self._search_rows(match, owner, wanted, ranked)
            if not rows:
                self._check_after_no_hit()
            undone = self._undone_turns({row[0] for row in rows})
            shown = [row for row in rows if row[6] != TurnStatus.HIDDEN and row[:2] not in undone]
            if chat is not None:
                shown = [row for row in shown if row[7] == chat]
            if len(shown) >= limit or len(rows) < wanted or (chat is not None and wanted >= IN_CHAT_MAX):
                return tuple(Hit(row[0], row[1], row[2] % MESSAGES_PER_TURN, *row[3:6]) for row in shown[:limit])
            # Some hits were undone, or said elsewhere: search again for more.
            wanted *= 4

    def _search_rows(self, match: str, owner: str, limit: int, ranked: bool) -> list[Row]:
        # The cost of ranking grows with the matches: only the newest matches of a common word are ranked.
        found = (
            "SELECT id, score FROM (SELECT rowid AS id, bm25(message_words, 1.0, 0.0) AS score FROM message_words "
            f"WHERE message_words MATCH ? ORDER BY rowid DESC LIMIT {RANKED_MAX}) ORDER BY score, id DESC LIMIT ?"
            if ranked
            else "SELECT rowid AS id, 0 AS score FROM message_words WHERE message_words MATCH ? "
            "ORDER BY rowid DESC LIMIT ?"
        )
        rows = self._execute(
            f"SELECT t.session_id, t.number, m.id, m.role, m.content, t.at, t.status, t.chat FROM ({found}) AS found "
            f"JOIN messages m ON m.id = found.id JOIN turns t ON t.id = m.id / {MESSAGES_PER_TURN} "
            "WHERE m.owner = ? ORDER BY found.score, m.id DESC",
            (match, limit, owner),
        )
        return list(rows)

    def recall(
        self, owner: str, question: str, *, limit: int, beside: Session | None = None, chat: str | None = None
    ) -> tuple[Hit, ...]:
        """Return messages related to a question in natural language, best first, one of each turn.

        A message counts by the number and rarity of the question's words in it, and by its brevity. Only messages of
        people and the model in chats are returned; none of undone or set-aside turns, and none that the session
        `beside` shows or has undone. With `chat`, only turns of that group chat are returned.
        """
        if beside and not self.has_other_conversations(owner, beside):
            return ()
        phrases = question_phrases(question)
        candidates = shares(self._word_hits(owner, phrases), MESSAGES_PER_TURN)
        if phrases and not candidates:
            self._check_after_no_hit()
        seen = self._turns.segments(beside, None, None)[0] if beside else []
        inherited = {part.session_id: part for part in seen[1:]}
        chosen: dict[tuple[str, int], tuple[float, int]] = {}
        for start in range(0, min(len(candidates), RECALLED_MAX), RECALLED_AT_ONCE):
            some = candidates[start:][:RECALLED_AT_ONCE]
            found = self._score_candidates(owner, some, seen[0] if seen else _NOTHING, chat)
            undone = self._undone_turns({session_id for _, _, session_id, _ in found})
            for score, message_id, session_id, number in found:
                if session_id in inherited and inherited[session_id].holds(number):
                    continue
                if (session_id, number) not in undone:
                    chosen.setdefault((session_id, number), (score, message_id))
                if len(chosen) == limit:
                    return self._read_hits(chosen.values())
        return self._read_hits(chosen.values())

    def has_other_conversations(self, owner: str, session: Session) -> bool:
        """Return whether the owner may have messages that the session does not show. A quick check."""
        if session.owner != owner or session.floor > session.base_turn:
            return True
        others = "SELECT 1 FROM sessions WHERE owner = ? AND id <> ? AND last_turn > base_turn LIMIT 1"
        return self._exists(others, (owner, session.id))

    def _word_hits(self, owner: str, phrases: list[str]) -> list[list[int]]:
        """Return the newest messages with each phrase. Two common phrases are also searched for together."""

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

    def _score_candidates(
        self, owner: str, some: list[tuple[float, int]], seen: Segment, chat: str | None
    ) -> list[tuple[float, int, str, int]]:
        """Return score, id, session and turn of the candidates that may be recalled, best first.

        Turns in `seen` are excluded in SQL: in a long conversation they are most of the candidates.
        """
        share_of = {message_id: share for share, message_id in some}
        values = ", ".join(["(?)"] * len(some))
        rows = self._execute(
            f"WITH candidates (id) AS (VALUES {values}) "
            "SELECT m.id, t.session_id, t.number, octet_length(m.content) FROM candidates c "
            f"JOIN turns t ON t.id = c.id / {MESSAGES_PER_TURN} JOIN messages m ON m.id = c.id "
            "JOIN sessions s ON s.id = t.session_id "
            f"WHERE t.owner = ? AND t.{SHOWN} AND NOT (t.session_id = ? AND t.number > ? AND t.number <= ?) "
            f"AND m.owner = ? AND m.role IN ('user', 'assistant') AND s.kind IN ({_REMEMBERED})"
            + (" AND t.chat = ?" if chat is not None else ""),
            (*share_of, owner, seen.session_id, seen.after, seen.up_to, owner, *([chat] if chat is not None else [])),
        )
        return sorted(
            ((share_of[row[0]] * brevity(row[3]), row[0], row[1], row[2]) for row in rows),
            reverse=True,
        )

    def _undone_turns(self, session_ids: Collection[str]) -> frozenset[tuple[str, int]]:
        """Return the turns of these sessions that were hidden, there or in a continuation."""
        found: set[tuple[str, int]] = set()
        ids = iter(session_ids)
        while some := list(islice(ids, SESSIONS_AT_ONCE)):
            found.update(self._read_undone(some))
        return frozenset(found)

    def _read_undone(self, session_ids: list[str]) -> Iterator[tuple[str, int]]:
        values = placeholders(len(session_ids))
        # A continuation may have its own turns with the same numbers as later turns of the session.
        rows = self._execute(
            "WITH RECURSIVE line (root, id, up_to) AS ("
            f"SELECT id, id, 9223372036854775807 FROM sessions WHERE id IN ({values}) UNION ALL "
            "SELECT line.root, s.id, CASE WHEN s.base_turn < line.up_to THEN s.base_turn ELSE line.up_to END "
            "FROM line JOIN sessions s ON s.parent_id = line.id AND s.cause = 'compression') "
            # CROSS JOIN fixes the order: the other one would read every hidden turn.
            "SELECT line.root, h.number FROM line CROSS JOIN hidden h "
            "WHERE h.session_id = line.id AND h.number <= line.up_to",
            session_ids,
        )
        return ((row[0], row[1]) for row in rows)

    def _read_hits(self, chosen: Collection[tuple[float, int]]) -> tuple[Hit, ...]:
        if not chosen:
            return ()
        score_of = {message_id: score for score, message_id in chosen}
        values = placeholders(len(chosen))
        rows = self._execute(
            "SELECT t.session_id, t.number, m.id, m.role, m.content, t.at FROM messages m "
            f"JOIN turns t ON t.id = m.id / {MESSAGES_PER_TURN} WHERE m.id IN ({values})",
            list(score_of),
        )
        best_first = sorted(rows, key=lambda row: (score_of[row[2]], row[2]), reverse=True)
        return tuple(
            Hit(row[0], row[1], row[2] % MESSAGES_PER_TURN, *row[3:6], score=score_of[row[2]]) for row in best_first
        )

    def remove(self, start: int, end: int) -> None:
        """Remove the messages with ids from `start` to before `end` from the index."""
        # One by one: a contentless FTS5 table deletes by rowid only.
        for (message_id,) in self._execute("SELECT id FROM messages WHERE id >= ? AND id < ?", (start, end)):
            self._execute("DELETE FROM message_words WHERE rowid = ?", (message_id,))

    def replace(self, message_id: int, content: str, owner: str) -> None:
        """Index the message with another content."""
        self._execute("DELETE FROM message_words WHERE rowid = ?", (message_id,))
        words = (message_id, index_text(content), owner_token(owner))
        self._execute("INSERT INTO message_words (rowid, text, scope) VALUES (?, ?, ?)", words)

    def purge(self, *, begin: bool) -> bool:
        """Remove a part of the deleted words from the file. Return whether there is more to remove.

        FTS5 only marks words as deleted until it merges the segments that hold them.
        """
        ((before,),) = self._execute("SELECT total_changes()")
        pages = -PURGE_PAGES if begin else PURGE_PAGES
        self._execute("INSERT INTO message_words (message_words, rank) VALUES ('merge', ?)", (pages,))
        ((after,),) = self._execute("SELECT total_changes()")
        return after - before >= 2
