"""What a lane delivers next, read from the store: nothing here changes anything."""

from __future__ import annotations

from msgspec import Struct

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
from everthread.ports.store import Cursor, Redelivery, UnitOfWork


class Letter(Struct, frozen=True):
    """One entry on its way to one provider."""

    cursor: Cursor
    entry: LogEntry
    event: Event
    delivery: Delivery
    redelivery: Redelivery | None = None

    is_left_out: bool = False
    """The past is told as it stands now, and this is no part of it any more."""

    @property
    def is_empty(self) -> bool:
        """Nothing to tell: left out, or a note that was forgotten before it was told."""
        return self.is_left_out or (isinstance(self.event, NoteWritten) and self.event.note.content == FORGOTTEN)


class Heavy(Exception):
    """The next letter is long: to be read where nobody waits."""


def next_letter(
    uow: UnitOfWork, provider: str, session_id: str, now: float, *, only_light: bool = False
) -> Letter | None:
    """First what is to be delivered once more, then the log in order."""
    cursor, session = uow.cursors.get(provider, session_id), uow.sessions.get(session_id)
    if cursor is None or session is None:
        return None
    first = first_told(session)
    for row in uow.cursors.redeliveries(provider, session_id):
        due = row.due_at is not None and row.due_at <= now and row.seq >= first
        entry = uow.log.entry(session_id, row.seq) if due else None
        if entry is not None and not (letter := _letter(uow, cursor, entry, row, only_light)).is_empty:
            return letter
    if cursor.due_at is None or cursor.due_at > now:
        return None
    entry = uow.log.after(session_id, max(cursor.seq, first - 1))
    while entry is not None:
        letter = _letter(uow, cursor, entry, None, only_light)
        if not letter.is_empty:
            return letter
        entry = uow.log.after(session_id, entry.seq)
    return None


def first_told(session: Session) -> int:
    """The first entry of a log that is still told: what came before a forgetting is not, also when it is replayed."""
    return session.forgotten_seq or 0


def pointless(uow: UnitOfWork, cursor: Cursor, session: Session) -> tuple[Redelivery, ...]:
    """Redeliveries that will never be made, because what they tell was forgotten."""
    return tuple(
        row
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id)
        if row.seq < first_told(session)
        or (entry := uow.log.entry(session.id, row.seq)) is None
        or _letter(uow, cursor, entry, row).is_empty
    )


def _letter(
    uow: UnitOfWork, cursor: Cursor, entry: LogEntry, redelivery: Redelivery | None, only_light: bool = False
) -> Letter:
    if only_light and not uow.log.is_light(entry):
        raise Heavy
    source = redelivery or cursor
    key = f"{cursor.session_id}:{entry.seq}:{cursor.provider}:{source.replay}"
    delivery = Delivery(key, entry.seq, source.attempts + 1, source.replay)
    missing = uow.cursors.parked(cursor.provider, cursor.session_id) if entry.kind is EntryKind.CLOSE else ()
    copied = entry.seq <= cursor.copy_to
    event = uow.log.event(entry, missing, as_of_now=copied)
    left_out = copied and _is_left_out(uow, entry, event, once_more=redelivery is not None)
    return Letter(cursor, entry, event, delivery, redelivery, left_out)


def _is_left_out(uow: UnitOfWork, entry: LogEntry, event: Event, *, once_more: bool) -> bool:
    """Whether a copy passes over an entry: turns that were taken back, the taking back, and what was forgotten.

    To tell anew that a person is to be forgotten would lose what is copied of them. One that the provider had rejected
    is still owed to it.
    """
    match event:
        case TurnCommitted(turn=turn):
            taken_back = uow.log.is_taken_back(entry.ref.session_id, turn.number)
            return taken_back or turn.status is TurnStatus.HIDDEN
        case SessionRewound():
            return True
        case Forgotten():
            return not once_more
        case _:
            return False
