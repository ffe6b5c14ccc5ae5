"""Find the next log entry for one provider in one session. Reads only."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.clock_rules import is_waiting
from everthread.domain.events import (
    Delivery,
    EntryKind,
    Event,
    Forgotten,
    LogEntry,
    NoteWritten,
    SessionRewound,
    TurnCommitted,
)
from everthread.domain.model import FORGOTTEN, Session, TurnStatus
from everthread.store.cursors import Cursor, Redelivery
from everthread.store.unit_of_work import UnitOfWork


class PendingEntry(Struct, frozen=True):
    """One log entry on its way to one provider."""

    cursor: Cursor
    entry: LogEntry
    event: Event
    delivery: Delivery
    redelivery: Redelivery | None = None
    is_left_out: bool = False
    """A backfill skips this entry: it is not part of the session as it stands now."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to deliver: left out, or a note that was forgotten before its delivery."""
        return self.is_left_out or (isinstance(self.event, NoteWritten) and self.event.note.content == FORGOTTEN)


class HeavyEntry(Exception):
    """The next entry is long: read it outside the event loop."""


def next_entry(
    uow: UnitOfWork, provider: str, session_id: str, now: float, *, only_light: bool = False
) -> PendingEntry | None:
    """Return the first redelivery that is due, or else the next entry of the log.

    Raises `HeavyEntry` for a long one if `only_light`.
    """
    cursor, session = uow.cursors.get(provider, session_id), uow.sessions.get(session_id)
    if cursor is None or session is None:
        return None
    first = first_deliverable(session)
    for row in uow.cursors.redeliveries(provider, session_id):
        due = row.due_at is not None and not is_waiting(row.due_at, now) and row.seq >= first
        entry = uow.log.entry(session_id, row.seq) if due else None
        if entry is not None and not (pending := _read(uow, cursor, entry, row, only_light)).is_empty:
            return pending
    if cursor.due_at is None or is_waiting(cursor.due_at, now):
        return None
    entry = uow.log.after(session_id, max(cursor.seq, first - 1))
    while entry is not None:
        pending = _read(uow, cursor, entry, None, only_light)
        if not pending.is_empty:
            return pending
        entry = uow.log.after(session_id, entry.seq)
    return None


def first_deliverable(session: Session) -> int:
    """Return the first log position that may be delivered. Entries before a forget never are, not even by a replay."""
    return session.forgotten_seq or 0


def obsolete_redeliveries(uow: UnitOfWork, cursor: Cursor, session: Session) -> tuple[Redelivery, ...]:
    """Return the redeliveries that will never be made because their content was forgotten."""
    return tuple(
        row
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id)
        if row.seq < first_deliverable(session)
        or (entry := uow.log.entry(session.id, row.seq)) is None
        or _read(uow, cursor, entry, row).is_empty
    )


def _read(
    uow: UnitOfWork, cursor: Cursor, entry: LogEntry, redelivery: Redelivery | None, only_light: bool = False
) -> PendingEntry:
    if only_light and not uow.log.is_light(entry):
        raise HeavyEntry
    source = redelivery or cursor
    key = f"{cursor.session_id}:{entry.seq}:{cursor.provider}:{source.replay}"
    delivery = Delivery(key, entry.seq, source.attempts + 1, source.replay)
    missing = uow.cursors.parked(cursor.provider, cursor.session_id) if entry.kind is EntryKind.CLOSE else ()
    copied = entry.seq <= cursor.copy_to
    event = uow.log.event(entry, missing, as_of_now=copied)
    left_out = copied and _is_left_out(uow, entry, event, is_redelivery=redelivery is not None)
    return PendingEntry(cursor, entry, event, delivery, redelivery, left_out)


def _is_left_out(uow: UnitOfWork, entry: LogEntry, event: Event, *, is_redelivery: bool) -> bool:
    """Return True if a backfill skips an entry: rewound turns, the rewind itself, and a forget.

    A forget of a person would erase what the backfill has delivered of them. A forget that the provider had rejected is
    still delivered.
    """
    match event:
        case TurnCommitted(turn=turn):
            rewound = uow.log.is_hidden(entry.ref.session_id, turn.number)
            return rewound or turn.status is TurnStatus.HIDDEN
        case SessionRewound():
            return True
        case Forgotten():
            return not is_redelivery
        case _:
            return False
