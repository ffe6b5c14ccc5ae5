"""Consistency checks between the rows of a store, valid for any database file."""

from __future__ import annotations

from everthread.adapters.sqlite.connection import Connection

# Each query selects invalid rows; the first column names the row.
_CHECKS = {
    "a binding is on no session": (
        "SELECT key FROM bindings WHERE session_id IS NOT NULL AND session_id NOT IN (SELECT id FROM sessions)"
    ),
    "a binding is on somebody else's session": (
        "SELECT b.key FROM bindings b JOIN sessions s ON s.id = b.session_id WHERE s.owner <> b.owner"
    ),
    "a binding has another generation than its session": (
        "SELECT b.key FROM bindings b JOIN sessions s ON s.id = b.session_id WHERE s.generation <> b.generation"
    ),
    "a turn has no session": "SELECT id FROM turns WHERE session_id NOT IN (SELECT id FROM sessions)",
    "a turn is newer than its session knows": (
        "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.number > s.last_turn"
    ),
    "a turn stands where its parent's do": (
        "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.number <= s.base_turn"
    ),
    "a turn belongs to another than its session": (
        "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.owner <> s.owner"
    ),
    "a message has no turn": "SELECT id FROM messages WHERE id / 4096 NOT IN (SELECT id FROM turns)",
    "a log has a gap": (
        "SELECT s.id FROM sessions s LEFT JOIN log l ON l.session_id = s.id GROUP BY s.id "
        "HAVING COUNT(l.seq) <> s.log_seq OR COALESCE(MAX(l.seq), 0) <> s.log_seq OR COALESCE(MIN(l.seq), 1) <> 1"
    ),
    "a log has no session": "SELECT pos FROM log WHERE session_id NOT IN (SELECT id FROM sessions)",
    "a log entry tells of no turn": (
        "SELECT l.pos FROM log l LEFT JOIN turns t ON t.session_id = l.session_id AND t.number = l.number "
        "WHERE l.kind = 'turn' AND t.id IS NULL"
    ),
    "a remembered turn is in no log": (
        "SELECT id FROM turns WHERE status IN ('done', 'interrupted', 'late') AND (session_id, number) NOT IN "
        "(SELECT session_id, number FROM log WHERE kind = 'turn')"
    ),
    "a close covers what is not there": "SELECT id FROM sessions WHERE closed_seq > log_seq OR dirty_seq > log_seq",
    "a child sees more than its parent has": (
        "SELECT c.id FROM sessions c JOIN sessions p ON p.id = c.parent_id "
        "WHERE c.base_turn > p.last_turn OR c.base_seq > p.log_seq OR c.floor > c.base_turn"
    ),
    "a summary is missing": (
        "SELECT id FROM sessions WHERE summary_id IS NOT NULL AND summary_id NOT IN (SELECT session_id FROM summaries)"
    ),
    "a turn is hidden that never was": (
        "SELECT h.number FROM hidden h JOIN sessions s ON s.id = h.session_id "
        "WHERE h.number > s.last_turn OR h.seq > s.log_seq"
    ),
    "a cursor is beyond its log": (
        "SELECT c.session_id FROM cursors c LEFT JOIN sessions s ON s.id = c.session_id "
        "WHERE s.id IS NULL OR c.seq > s.log_seq"
    ),
    "a provider has looked beyond the logs": (
        "SELECT name FROM providers WHERE scanned_pos > (SELECT COALESCE(MAX(pos), 0) FROM log)"
    ),
    "a slot is in no session": "SELECT turn_id FROM slots WHERE session_id NOT IN (SELECT id FROM sessions)",
    "a running turn has no message": "SELECT turn_id FROM slots WHERE inbox_id NOT IN (SELECT id FROM inbox)",
    "a turn is both running and committed": "SELECT turn_id FROM slots WHERE turn_id IN (SELECT turn_id FROM turns)",
    "a tool belongs to no running turn": (
        "SELECT turn_id FROM tool_rows WHERE turn_id NOT IN (SELECT turn_id FROM slots)"
    ),
    "the index is ahead of the turns": (
        "SELECT turn FROM indexed WHERE turn > (SELECT COALESCE(MAX(id), 0) FROM turns)"
    ),
    "an indexed message has no words": (
        "SELECT m.id FROM messages m JOIN turns t ON t.id = m.id / 4096 JOIN sessions s ON s.id = t.session_id "
        "WHERE m.id / 4096 <= (SELECT turn FROM indexed) AND m.content NOT IN ('', '[forgotten]') "
        "AND m.id NOT IN (SELECT rowid FROM message_words)"
    ),
    "words are indexed of no message": "SELECT rowid FROM message_words WHERE rowid NOT IN (SELECT id FROM messages)",
    "a note's newest version is missing": (
        "SELECT n.note_id FROM notes n LEFT JOIN note_versions v ON v.note_id = n.note_id AND v.version = n.version "
        "WHERE v.note_id IS NULL"
    ),
    "a title is used twice": (
        "SELECT title_fold FROM sessions WHERE title_fold IS NOT NULL GROUP BY owner, title_fold HAVING COUNT(*) > 1"
    ),
}


def inconsistencies(database: Connection) -> list[str]:
    """List inconsistencies, one line each; empty for a sound store."""
    found = [f"integrity: {row[0]}" for row in database.execute("PRAGMA integrity_check") if row[0] != "ok"]
    found += [f"foreign key: {row}" for row in database.execute("PRAGMA foreign_key_check")]
    database.execute("INSERT INTO message_words (message_words) VALUES ('integrity-check')")
    for what, sql in _CHECKS.items():
        rows = list(database.execute(f"{sql} LIMIT 3"))
        if rows:
            found.append(f"{what}: {', '.join(str(row[0]) for row in rows)}")
    return found
