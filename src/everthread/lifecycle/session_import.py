"""Import sessions: append their new lines to the store, in batches, and never rewrite existing ones.

Memory providers do not receive imported turns: their cursors move past them. Imported notes are delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from everthread.domain import titles
from everthread.domain.errors import Erased
from everthread.domain.events import EntryKind
from everthread.domain.export_format import (
    Base,
    DelegationLine,
    Item,
    MessageLine,
    NoteLine,
    RewindLine,
    SessionLine,
    TurnLine,
)
from everthread.domain.model import Cause, Message, NoteAction, NoteAuthor, Session, SessionKey, ToolCall
from everthread.lifecycle.boundaries import append, close
from everthread.lifecycle.forget import is_forgotten
from everthread.lifecycle.import_match import (
    Diverged,
    ImportedSession,
    ImportOutcome,
    StoredCounterpart,
    find_counterpart,
    new_lines,
)
from everthread.lifecycle.notes import NoteChange, write_note
from everthread.store.derived_text import WRITTEN
from everthread.store.unit_of_work import Store, UnitOfWork


class SessionInUse(Exception):
    """The session is in use or has changed since it was read, or its parent is gone."""


def is_busy(uow: UnitOfWork, session_id: str, routed: AbstractSet[SessionKey] = frozenset()) -> bool:
    """Return True if a key other than `routed` is on the session, a turn runs in it, or a provider is behind."""
    in_use = set(uow.sessions.keys_on(session_id)) - routed or uow.slots.of_session(session_id)
    return bool(in_use) or uow.archive.has_undelivered(session_id)


def begin(
    uow: UnitOfWork, line: SessionLine, session_id: str, owner: str, before: Mapping[str, ImportedSession], now: float
) -> None:
    """Create the session without its turns. Raises `SessionInUse` if it exists by now, or its parent is gone."""
    key = SessionKey.parse(line.key)
    parent_id = before[line.parent].session_id if line.parent is not None else None
    summary_id = before[line.summary_of].session_id if line.summary_of is not None else None
    if uow.sessions.get(session_id) is not None or (parent_id is not None and uow.sessions.get(parent_id) is None):
        raise SessionInUse
    session = Session(
        session_id,
        owner,
        key,
        line.kind,
        line.cause,
        line.opened_at,
        parent_id=parent_id,
        title=_free_title(uow, line.title, owner),
        generation=line.generation,
        ended_at=line.ended_at,
        end_reason=line.end_reason,
        active_at=line.active_at,
        floor=line.floor,
        base_turn=line.base.turn,
        base_seq=_base_seq(uow, parent_id, line.base.rewinds),
        summary_id=session_id if line.summary is not None else summary_id,
        last_turn=line.base.turn,
    )
    detail: dict[str, object] = {"parent": parent_id or "", "reset": False, "reason": Cause.IMPORT.value}
    session = append(uow, session, session.ref_at(key, 0), EntryKind.OPENED, now, detail=detail)
    uow.sessions.add(session)
    if line.summary is not None:
        uow.derived.put_summary(session, line.summary, uow.erasure.forget_count(session.owner))
    uow.archive.mark_delivered(session_id)


def check_unchanged(
    uow: UnitOfWork, session_id: str, left_at: int, routed: AbstractSet[SessionKey] = frozenset()
) -> None:
    """Raise `SessionInUse` if the session's log has moved past `left_at`, or the session is busy."""
    if _existing_session(uow, session_id).log_seq != left_at or is_busy(uow, session_id, routed):
        raise SessionInUse


def add(uow: UnitOfWork, session_id: str, items: Sequence[Item]) -> int:
    """Append a batch of lines. Returns the new log position."""
    session = _existing_session(uow, session_id)
    for item in items:
        ref = session.ref_at(session.key, 0)
        match item:
            case TurnLine():
                messages = [_message(message) for message in item.messages]
                uow.turns.add(session, item.number, item.id, item.status, messages, item.at, item.chat)
                session = session.replace(last_turn=item.number)
                if item.status.remembered:
                    session = append(uow, session, ref, EntryKind.TURN, item.at, number=item.number)
            case RewindLine():
                detail: dict[str, object] = {"turns": list(item.turns)}
                session = append(uow, session, ref, EntryKind.REWIND, item.at, detail=detail)
                uow.turns.hide(session, item.turns, session.log_seq)
            case DelegationLine():
                detail = {"task": item.task, "result": item.result, "child": item.child}
                session = append(uow, session, ref, EntryKind.DELEGATION, item.at, detail=detail)
    uow.sessions.save(session)
    uow.archive.mark_delivered(session_id)
    return session.log_seq


def finish(
    uow: UnitOfWork, line: SessionLine, session_id: str, now: float, routed: AbstractSet[SessionKey] = frozenset()
) -> None:
    """Close the session's memory, and set its end as in the file."""
    session = _existing_session(uow, session_id)
    session = close(uow, session, session.ref_at(session.key, 0), now)
    generation, active_at = max(session.generation, line.generation), max(session.active_at, line.active_at)
    if routed & set(uow.sessions.keys_on(session_id)):
        # Invalidate prompts that were prepared without the added turns.
        generation += 1
    uow.sessions.renew(
        session.replace(generation=generation, active_at=active_at, ended_at=line.ended_at, end_reason=line.end_reason)
    )
    uow.archive.mark_delivered(session_id)


def is_new_note(uow: UnitOfWork, line: NoteLine, owner: str) -> bool:
    """Return True if the note was not forgotten and the owner has no note with the same words."""
    if uow.erasure.has_tombstone("note", line.id) or is_forgotten(uow, owner, line.content):
        return False
    words = line.content.split()
    return all(note.content.split() != words for note in uow.notes.current(owner, line.target))


def import_note(uow: UnitOfWork, line: NoteLine, owner: str, new_id: str, now: float) -> bool:
    """Import a note if it is new. Unlike turns, it is delivered to memory providers."""
    if not is_new_note(uow, line, owner):
        return False
    note_id = line.id if uow.notes.get(line.id) is None else new_id
    change = NoteChange(NoteAction.ADD, line.target, line.content, author=NoteAuthor.IMPORT)
    write_note(uow, change, WRITTEN, owner=owner, ref=None, new_id=note_id, now=now)
    return True


def _existing_session(uow: UnitOfWork, session_id: str) -> Session:
    session = uow.sessions.get(session_id)
    if session is None or session.forgotten_seq is not None:
        raise Erased(f"session {session_id!r} was forgotten while it was imported")
    return session


def _base_seq(uow: UnitOfWork, parent_id: str | None, rewinds: int) -> int:
    """Return the position in the parent's log at which the session began: after that number of rewinds."""
    if parent_id is None or not rewinds:
        return 0
    return max((entry.seq for entry in uow.log.of_kind(parent_id, EntryKind.REWIND)[:rewinds]), default=0)


def _free_title(uow: UnitOfWork, title: str | None, owner: str) -> str | None:
    if title is None:
        return None
    taken = [session.title or "" for session in uow.sessions.titled(owner, title)]
    return titles.next_title(title, taken) if titles.fold(title) in map(titles.fold, taken) else title


def _message(line: MessageLine) -> Message:
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in line.tool_calls)
    return Message(line.role, line.content, calls, line.tool_call_id, line.name, line.reasoning)


ITEMS_AT_ONCE = 200
CHARS_AT_ONCE = 4_000_000


Items = Iterable[Item] | Callable[[StoredCounterpart], Iterable[Item]]
"""A session's lines; or, for a source without an order, a function that makes them from the stored counterpart."""


class ImportRequest(Struct, frozen=True):
    """Input for one session, with the results of the sessions before it in the file."""

    line: SessionLine
    owner: str
    before: Mapping[str, ImportedSession]
    routed: frozenset[SessionKey] = frozenset()
    """Keys that the import itself bound to the session, as in its source. They do not make it busy."""


async def import_session(
    store: Store, now: Callable[[], float], arrival: ImportRequest, items: Items, *, dry_run: bool
) -> ImportedSession:
    """Import the new lines in batches. If it is interrupted, running the same import again continues it."""
    found = await store.read(lambda uow: find_counterpart(uow, arrival.line, arrival.owner, arrival.before))
    session_id = found.session_id
    if found.outcome is ImportOutcome.FORGOTTEN:
        # If the row of the forgotten session is still there, its children can be imported below it.
        exists = await store.read(lambda uow: uow.sessions.get(session_id)) is not None
        return ImportedSession(found.outcome, session_id if exists else None)
    if found.outcome.why:
        return ImportedSession(found.outcome, None)
    is_new = found.outcome is ImportOutcome.NEW
    batches = _batches(new_lines(found, items(found) if callable(items) else items))
    try:
        some = next(batches, None)
    except Diverged:
        return ImportedSession(ImportOutcome.DIFFERENT, None)
    if some is None and not is_new:
        return ImportedSession(ImportOutcome.SAME, session_id)
    has = Base(max(found.turns, default=arrival.line.base.turn), len(found.rewinds))
    if not is_new and await store.read(lambda uow: is_busy(uow, session_id, arrival.routed)):
        return ImportedSession(ImportOutcome.BUSY, session_id, has=has)
    opening, turns, left_at = is_new, 0, found.left_at
    while some is not None or opening:
        following = next(batches, None)
        if not dry_run:
            at = None if opening else left_at
            write = _write(arrival, session_id, some or (), now, left_at=at, last=following is None)
            try:
                left_at = await store.write(write)
            except SessionInUse:
                # The batches written so far match the file; a later import continues after them.
                return ImportedSession(ImportOutcome.BUSY, None if opening else session_id, turns, has)
            except Erased:
                return ImportedSession(ImportOutcome.FORGOTTEN, session_id, turns)
        turns += sum(isinstance(item, TurnLine) for item in some or ())
        has = _progress_after(has, some or ())
        some, opening = following, False
    return ImportedSession(ImportOutcome.NEW if is_new else ImportOutcome.GROWN, session_id, turns)


def _progress_after(has: Base, some: Sequence[Item]) -> Base:
    """Return the last turn and number of rewinds after this batch."""
    numbers = [item.number for item in some if isinstance(item, TurnLine)]
    return Base(max(numbers, default=has.turn), has.rewinds + sum(isinstance(item, RewindLine) for item in some))


def _write(
    arrival: ImportRequest,
    session_id: str,
    some: Sequence[Item],
    now: Callable[[], float],
    *,
    left_at: int | None,
    last: bool,
) -> Callable[[UnitOfWork], int]:
    """Build the transaction of one batch. It creates the session if `left_at` is None, and returns the log position.

    Most sessions fit into one batch.
    """

    def write(uow: UnitOfWork) -> int:
        if left_at is None:
            begin(uow, arrival.line, session_id, arrival.owner, arrival.before, now())
        else:
            check_unchanged(uow, session_id, left_at, arrival.routed)
        behind = add(uow, session_id, some)
        if last:
            finish(uow, arrival.line, session_id, now(), arrival.routed)
        return behind

    return write


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split the lines into batches that are small enough not to block other writers for long."""
    some: list[Item] = []
    chars = 0
    for item in items:
        some.append(item)
        chars += sum(len(message.content) for message in item.messages) if isinstance(item, TurnLine) else 0
        if len(some) >= ITEMS_AT_ONCE or chars >= CHARS_AT_ONCE:
            yield some
            some, chars = [], 0
    if some:
        yield some
