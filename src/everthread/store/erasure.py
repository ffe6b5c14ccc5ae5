"""Erasure of everything that a person asked to be forgotten, from every table that holds text."""

from __future__ import annotations

from typing import Any, cast

from everthread.domain.model import FORGOTTEN, SUBAGENT_PLATFORM, NoteVersion, Session
from everthread.store.attachments import discard
from everthread.store.database import Database, Table
from everthread.store.search_index import SearchIndex
from everthread.store.sessions import folded
from everthread.store.sql import from_json, to_json
from everthread.store.turns import MESSAGES_PER_TURN

_THEIRS = "session_id IN (SELECT id FROM sessions WHERE owner = ?)"

_TEXTS_OF_OWNER = (
    ("messages", "content"),
    ("summaries", "content"),
    ("tool_rows", "arguments"),
    ("tool_rows", "result"),
    ("inbox", "content"),
    ("inbox", "media"),
    ("replies", "content"),
    ("note_versions", "content"),
    ("schedules", "content"),
    ("occurrences", "problem"),
)

# Text inside JSON records: only values may change.
_RECORDS_OF_OWNER = (
    (
        "SELECT id, extra FROM messages WHERE owner = ? "
        "AND (replace(extra, ?, '') <> extra OR replace(extra, ?, '') <> extra)",
        "UPDATE messages SET extra = ? WHERE id = ?",
    ),
    (
        "SELECT pos, detail FROM log WHERE owner = ? AND kind = 'delegation' "
        "AND (replace(detail, ?, '') <> detail OR replace(detail, ?, '') <> detail)",
        "UPDATE log SET detail = ? WHERE pos = ?",
    ),
)


class Erasure(Table):
    """Erase the text of sessions, notes, facts and owners, and keep tombstones."""

    def __init__(self, database: Database, search: SearchIndex) -> None:
        super().__init__(database)
        self._search = search

    def scrub_session(self, session: Session) -> tuple[str, ...]:
        """Erase the text of a session: messages, notes, replies, errors and derived prefixes.

        Return the texts of the notes that were written in it.
        """
        wordings = self._wordings("SELECT content FROM note_versions WHERE session_id = ?", session.id)
        turns = list(self._execute("SELECT id, turn_id FROM turns WHERE session_id = ?", (session.id,)))
        running = list(self._execute("SELECT turn_id FROM slots WHERE session_id = ?", (session.id,)))
        for row_id, _ in turns:
            self._blank_messages(row_id * MESSAGES_PER_TURN, (row_id + 1) * MESSAGES_PER_TURN)
        for turn_id in (*(turn_id for _, turn_id in turns), *(turn_id for (turn_id,) in running)):
            self._scrub_turn(turn_id)
        discard(self._execute, session.owner, session.id)
        for sql in (
            "UPDATE summaries SET content = '[forgotten]' WHERE session_id = ?",
            "DELETE FROM prefixes WHERE session_id = ?",
            "DELETE FROM reviews WHERE session_id = ?",
            "DELETE FROM rests WHERE session_id = ?",
            "UPDATE log SET detail = NULL WHERE session_id = ? AND kind = 'delegation'",
            "DELETE FROM incidents WHERE session_id = ?",
            "UPDATE cursors SET error = NULL WHERE session_id = ?",
            "UPDATE redeliveries SET error = '' WHERE session_id = ?",
            "UPDATE sessions SET title = NULL, title_fold = NULL, title_base = NULL WHERE id = ?",
            "UPDATE note_versions SET content = '[forgotten]' WHERE session_id = ?",
        ):
            self._execute(sql, (session.id,))
        if session.key.platform == SUBAGENT_PLATFORM:
            # Delegated work that has not started: its key is unbound, so no process would ever start it.
            self._execute(
                "UPDATE inbox SET content = '[forgotten]', state = 'set_aside' WHERE key = ? AND state = 'waiting'",
                (str(session.key),),
            )
        self._execute(
            "UPDATE notes SET live = false WHERE live AND EXISTS (SELECT 1 FROM note_versions v "
            "WHERE v.note_id = notes.note_id AND v.version = notes.version AND v.session_id = ?)",
            (session.id,),
        )
        if wordings:
            # Every prefix built since may quote the notes.
            self._execute("DELETE FROM prefixes WHERE owner = ?", (session.owner,))
        self._execute("UPDATE providers SET last_error = NULL")
        return wordings

    def scrub_notes(self, owner: str, versions: tuple[NoteVersion, ...]) -> None:
        """Erase these versions, and delete the owner's prefixes, which may quote them."""
        for version in versions:
            self._execute(
                "UPDATE note_versions SET content = '[forgotten]' WHERE note_id = ? AND version = ? AND owner = ?",
                (version.note_id, version.version, owner),
            )
        if versions:
            self._execute("DELETE FROM prefixes WHERE owner = ?", (owner,))

    def scrub_descendants(self, session: Session, session_ids: tuple[str, ...]) -> None:
        """Erase the summaries, prefixes and titles of descendants that derive from the session."""
        _, base = folded(session.title)
        for session_id in session_ids:
            self._execute(
                "UPDATE sessions SET title = NULL, title_fold = NULL, title_base = NULL "
                "WHERE id = ? AND title_base = ?",
                (session_id, base),
            )
            self._execute("UPDATE summaries SET content = ? WHERE session_id = ?", (FORGOTTEN, session_id))
            self._execute("DELETE FROM prefixes WHERE session_id = ?", (session_id,))

    def scrub_owner(self, owner: str) -> tuple[str, ...]:
        """Erase what belongs to the owner but to no session: messages, notes, schedules, access.

        Return the texts of the owner's notes.
        """
        wordings = self._wordings("SELECT content FROM note_versions WHERE owner = ?", owner)
        requests = list(self._execute("SELECT session_id, seq FROM log WHERE owner = ? AND kind = 'forget'", (owner,)))
        for session_id, seq in requests:
            self._strip_text(session_id, seq)
        discard(self._execute, owner)
        for sql in (
            "UPDATE inbox SET content = '[forgotten]', "
            "state = CASE state WHEN 'waiting' THEN 'set_aside' ELSE state END WHERE owner = ?",
            "UPDATE note_versions SET content = '[forgotten]' WHERE owner = ?",
            "UPDATE notes SET live = false WHERE owner = ?",
            "DELETE FROM prefixes WHERE owner = ?",
            "DELETE FROM projections WHERE owner = ?",
            "DELETE FROM chosen_models WHERE owner = ?",
            # Text that is in no turn: answers to commands, and unsent replies.
            "UPDATE replies SET content = '', state = CASE WHEN state IN ('draft', 'ready', 'sending') "
            "THEN 'withheld' ELSE state END WHERE owner = ? AND content <> ''",
            "DELETE FROM pairings WHERE EXISTS (SELECT 1 FROM guests g WHERE g.platform = pairings.platform "
            'AND g."user" = pairings."user" AND g.owner = ?)',
            "DELETE FROM pairings WHERE platform || ':' || \"user\" = ?",
            "DELETE FROM wrong_codes WHERE scope = ?",
            "DELETE FROM guests WHERE owner = ?",
            "DELETE FROM tokens WHERE owner = ?",
            "DELETE FROM occurrences WHERE owner = ?",
            "DELETE FROM schedules WHERE owner = ?",
            "DELETE FROM reply_files WHERE owner = ?",
        ):
            self._execute(sql, (owner,))
        self._scrub_errors(owner)
        return wordings

    def scrub_fact(self, note_id: str, owner: str) -> tuple[str, ...]:
        """Erase each version of a note wherever its exact text occurs among the owner's rows.

        Return the texts, the longest first.
        """
        wordings = {
            row[0]
            for row in self._execute(
                "SELECT content FROM note_versions WHERE note_id = ? AND owner = ?", (note_id, owner)
            )
            if row[0]
        }
        self._execute("UPDATE notes SET live = false WHERE note_id = ? AND owner = ?", (note_id, owner))
        # The longest first: one text may contain another.
        for wording in sorted(wordings, key=len, reverse=True):
            self._scrub_text(wording, owner)
        # A model rejects its signed reasoning if it was changed.
        self._execute("UPDATE tool_rows SET thought = NULL, thinker = NULL WHERE owner = ?", (owner,))
        self._execute("DELETE FROM projections WHERE owner = ?", (owner,))
        self._scrub_errors(owner)
        return tuple(sorted(wordings, key=len, reverse=True))

    def _scrub_errors(self, owner: str) -> None:
        """Erase providers' error messages, which may quote the owner."""
        for sql in (
            f"DELETE FROM incidents WHERE {_THEIRS}",
            f"UPDATE rests SET problem = '' WHERE {_THEIRS}",
            f"UPDATE cursors SET error = NULL WHERE error IS NOT NULL AND {_THEIRS}",
            f"UPDATE redeliveries SET error = '' WHERE {_THEIRS}",
        ):
            self._execute(sql, (owner,))
        self._execute("UPDATE providers SET last_error = NULL")

    def add_tombstone(self, kind: str, identity: str, owner: str, now: float) -> None:
        """Add a tombstone against replay and import."""
        self._execute(
            "INSERT INTO tombstones (kind, identity, owner, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (kind, identity, owner, now),
        )

    def strip_delivered(self, session_id: str, seq: int) -> None:
        """Erase a fact from its log entry once every provider has received the request to forget it."""
        row = self._first(
            "SELECT 1 FROM log WHERE session_id = ? AND seq = ? AND NOT EXISTS ("
            "SELECT 1 FROM providers p LEFT JOIN cursors c "
            "ON c.provider = p.name AND c.session_id = log.session_id WHERE COALESCE(c.seq, 0) < log.seq) "
            "AND NOT EXISTS (SELECT 1 FROM redeliveries r WHERE r.session_id = log.session_id AND r.seq = log.seq)",
            (session_id, seq),
        )
        if row is not None:
            self._strip_text(session_id, seq)

    def tombstones(self, owner: str) -> int:
        """Return the owner's number of tombstones. Text that was read before the last one must not be used."""
        return self._value("SELECT COUNT(*) FROM tombstones WHERE owner = ?", (owner,))

    def has_tombstone(self, kind: str, identity: str) -> bool:
        """Return whether there is a tombstone."""
        return self._exists("SELECT 1 FROM tombstones WHERE kind = ? AND identity = ?", (kind, identity))

    def _scrub_text(self, text: str, owner: str) -> None:
        in_json = _json_escaped(text)
        found = self._execute(
            "SELECT id, content FROM messages WHERE owner = ? AND replace(content, ?, '') <> content", (owner, text)
        )
        for message_id, content in list(found):
            self._search.replace(message_id, content.replace(text, FORGOTTEN), owner)
        for table, column in _TEXTS_OF_OWNER:
            for wording in {text, in_json}:
                self._execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?) "
                    f"WHERE owner = ? AND replace({column}, ?, '') <> {column}",
                    (wording, FORGOTTEN, owner, wording),
                )
        self._execute(
            "UPDATE sessions SET title = NULL, title_fold = NULL, title_base = NULL "
            "WHERE owner = ? AND replace(title, ?, '') <> title",
            (owner, text),
        )
        self._scrub_records(text, owner)
        prefixes: list[tuple[Any, ...]] = list(
            self._execute("SELECT session_id, number, content FROM prefixes WHERE owner = ?", (owner,))
        )
        for session_id, number, content in prefixes:
            if text.encode() in content or in_json.encode() in content:
                self._execute("DELETE FROM prefixes WHERE session_id = ? AND number = ?", (session_id, number))

    def _scrub_records(self, text: str, owner: str) -> None:
        escaped = _json_escaped(text)
        for select, update in _RECORDS_OF_OWNER:
            # A tool call's arguments are JSON inside JSON.
            rows = list(self._execute(select, (owner, escaped, _json_escaped(escaped))))
            for row_id, record in rows:
                self._execute(update, (to_json(_without(from_json(record), {text, escaped})), row_id))

    def _strip_text(self, session_id: str, seq: int) -> None:
        row = self._first("SELECT detail FROM log WHERE session_id = ? AND seq = ?", (session_id, seq))
        if row is not None and row[0]:
            detail = to_json({name: value for name, value in from_json(row[0]).items() if name != "text"})
            self._execute("UPDATE log SET detail = ? WHERE session_id = ? AND seq = ?", (detail, session_id, seq))

    def _wordings(self, sql: str, whose: str) -> tuple[str, ...]:
        """Return the notes' texts before they are erased."""
        return tuple({row[0] for row in self._execute(sql, (whose,)) if row[0] not in ("", FORGOTTEN)})

    def _blank_messages(self, start: int, end: int) -> None:
        self._search.remove(start, end)
        self._execute("UPDATE messages SET content = ?, extra = NULL WHERE id >= ? AND id < ?", (FORGOTTEN, start, end))

    def _scrub_turn(self, turn_id: str) -> None:
        self._execute("DELETE FROM reply_files WHERE turn_id = ?", (turn_id,))
        self._execute("DELETE FROM tool_rows WHERE turn_id = ?", (turn_id,))
        self._execute(
            "UPDATE replies SET content = '[forgotten]', "
            "state = CASE WHEN state IN ('draft', 'ready', 'sending') THEN 'withheld' ELSE state END "
            "WHERE turn_id = ?",
            (turn_id,),
        )


def _json_escaped(text: str) -> str:
    return to_json(text)[1:-1]


def _without(value: Any, wordings: set[str]) -> Any:
    """Return the record with its texts erased. Keys and ids of other sessions stay."""
    match value:
        case str():
            for wording in sorted(wordings, key=len, reverse=True):
                value = value.replace(wording, FORGOTTEN)
            return value
        case list():
            return [_without(item, wordings) for item in cast(list[Any], value)]
        case dict():
            items = cast(dict[str, Any], value).items()
            return {name: item if name == "child" else _without(item, wordings) for name, item in items}
        case _:
            return value
