"""The append-only logs of sessions, and the events that their entries stand for."""

from __future__ import annotations

from typing import Any

from everthread.domain.events import (
    EntryKind,
    Event,
    ForgetScope,
    Forgotten,
    LogEntry,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
    WorkDelegated,
)
from everthread.domain.model import Cause, SessionRef
from everthread.store.database import Database, Table
from everthread.store.notes import Notes
from everthread.store.sessions import Sessions
from everthread.store.sql import by_value, from_json, key_of, to_json
from everthread.store.turns import Turns

LIGHT_BYTES = 100_000
_KINDS = by_value(EntryKind)
_COLUMNS = "session_id, generation, key, epoch, owner, seq, kind, at, number, detail"


def _entry(row: tuple[Any, ...]) -> LogEntry:
    ref = SessionRef(row[0], row[1], key_of(row[2]), row[3], row[4])
    return LogEntry(ref, row[5], _KINDS[row[6]], row[7], row[8], from_json(row[9]) if row[9] else None)


class EventLog(Table):
    """Log entries, which refer to rows of other tables."""

    def __init__(self, database: Database, sessions: Sessions, turns: Turns, notes: Notes) -> None:
        super().__init__(database)
        self._sessions = sessions
        self._turns = turns
        self._notes = notes

    def append(self, entry: LogEntry) -> None:
        ref = entry.ref
        self._execute(
            f"INSERT INTO log ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(ref.session_id, ref.generation, str(ref.key), ref.epoch, ref.owner, entry.seq),
                *(entry.kind, entry.at, entry.number, to_json(entry.detail) if entry.detail else None),
            ),
        )

    def entry(self, session_id: str, seq: int) -> LogEntry | None:
        row = self._first(f"SELECT {_COLUMNS} FROM log WHERE session_id = ? AND seq = ?", (session_id, seq))
        return _entry(row) if row else None

    def after(self, session_id: str, seq: int) -> LogEntry | None:
        """Return the next entry after `seq`."""
        row = self._first(
            f"SELECT {_COLUMNS} FROM log WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT 1", (session_id, seq)
        )
        return _entry(row) if row else None

    def of_kind(self, session_id: str, kind: EntryKind) -> tuple[LogEntry, ...]:
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM log WHERE session_id = ? AND kind = ? ORDER BY seq", (session_id, kind.value)
        )
        return tuple(_entry(row) for row in rows)

    def last_close(self, session_id: str, up_to_seq: int) -> LogEntry | None:
        row = self._first(
            f"SELECT {_COLUMNS} FROM log WHERE session_id = ? AND seq <= ? AND kind = 'close' "
            "ORDER BY seq DESC LIMIT 1",
            (session_id, up_to_seq),
        )
        return _entry(row) if row else None

    def end(self) -> int:
        """Return the position of the newest entry of any log."""
        return self._value("SELECT COALESCE(MAX(pos), 0) FROM log")

    def is_hidden(self, session_id: str, number: int) -> bool:
        """Return whether the turn was hidden by a rewind."""
        return self._exists("SELECT 1 FROM hidden WHERE session_id = ? AND number = ?", (session_id, number))

    def event(self, entry: LogEntry, missing: tuple[int, ...] = (), *, as_of_now: bool = False) -> Event:
        """Build the entry's event from the rows as they are stored now.

        With `as_of_now`, a close leaves out turns that were hidden after it.
        """
        detail: dict[str, Any] = entry.detail or {}
        match entry.kind:
            case EntryKind.OPENED:
                return SessionOpened(entry.ref, detail["parent"], detail["reset"], Cause(detail["reason"]))
            case EntryKind.TURN:
                turn = self._turns.get(entry.ref.session_id, entry.number or 0)
                assert turn is not None
                return TurnCommitted(entry.ref, turn)
            case EntryKind.NOTE:
                note = self._notes.version(detail["note_id"], detail["version"])
                assert note is not None
                return NoteWritten(entry.ref, note, self._notes.newest(note.note_id))
            case EntryKind.DELEGATION:
                return WorkDelegated(
                    entry.ref, detail.get("task", ""), detail.get("result", ""), detail.get("child", "")
                )
            case EntryKind.REWIND:
                return SessionRewound(entry.ref, tuple(detail["turns"]))
            case EntryKind.CLOSE:
                return self._closed(entry, missing, detail, as_of_now)
            case EntryKind.FORGET:
                scope = ForgetScope(detail.get("scope", ForgetScope.FACT))
                return Forgotten(entry.ref, scope, detail.get("text", ""), detail.get("note_id", ""))

    def is_light(self, entry: LogEntry) -> bool:
        """Return whether building the event takes microseconds."""
        if entry.kind is EntryKind.TURN:
            return self._turns.size(entry.ref.session_id, entry.number or 0) <= LIGHT_BYTES
        return entry.kind is not EntryKind.CLOSE

    def _closed(
        self, entry: LogEntry, missing: tuple[int, ...], detail: dict[str, Any], as_of_now: bool
    ) -> SessionClosed:
        session = self._sessions.get(entry.ref.session_id)
        assert session is not None
        if as_of_now:
            view = self._turns.view(session, up_to=detail["turn"])
        else:
            view = self._turns.view(session, as_of_seq=entry.seq, up_to=detail["turn"])
        return SessionClosed(entry.ref, view, detail["through"], tuple(seq for seq in missing if seq < entry.seq))
