"""Match a session of an export file with the store: find its stored counterpart and the lines that are new."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from everthread.domain.events import EntryKind
from everthread.domain.export_format import (
    Base,
    DelegationLine,
    Item,
    RewindLine,
    SessionLine,
    TurnLine,
)
from everthread.domain.model import Session
from everthread.lifecycle.lineage import drop_inherited, nearest_ancestor, rewound_turns
from everthread.store.unit_of_work import UnitOfWork

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_EVERY_TURN = 2**31


_TURNS_AT_ONCE = 1000


class ImportOutcome(StrEnum):
    """Result of importing one session."""

    NEW = "new"
    GROWN = "grown"
    SAME = "same"
    FORGOTTEN = "forgotten"
    DIFFERENT = "different"
    BUSY = "busy"
    ORPHANED = "orphaned"

    @property
    def why(self) -> str:
        """The reason why the session was skipped; empty if it was not."""
        return _WHY.get(self, "")


_WHY = {
    ImportOutcome.FORGOTTEN: "was forgotten here and is not imported again",
    ImportOutcome.DIFFERENT: "has other turns here and was not changed",
    ImportOutcome.BUSY: "is in use here, or not fully delivered to memory yet; import it again later",
    ImportOutcome.ORPHANED: "continues a session that was not imported",
}


class StoredCounterpart(Struct, frozen=True):
    """The stored counterpart of a session in the file: its id, turns, rewinds and number of delegations."""

    outcome: ImportOutcome
    session_id: str
    turns: Mapping[int, str]
    rewinds: Sequence[tuple[int, ...]] = ()
    delegations: int = 0
    left_at: int = 0
    """Log position at the time of reading. A different position later means that another writer added entries."""


class ImportedSession(Struct, frozen=True):
    """Result for one session: its id in the store (None if it was skipped) and the number of turns added."""

    outcome: ImportOutcome
    session_id: str | None
    turns: int = 0
    has: Base | None = None
    """Last turn and number of rewinds that match the file; None if the whole session does."""

    def reaches(self, base: Base) -> bool:
        """Return True if the store has every turn and rewind that a child with this base depends on."""
        whole = self.has is None or (base.turn <= self.has.turn and base.rewinds <= self.has.rewinds)
        return self.session_id is not None and whole


def replacement_id(session_id: str, owner: str) -> str:
    """Derive a replacement for an id that another session has. It is deterministic, so that later imports match."""
    value = int.from_bytes(hashlib.sha256(f"{owner}\0{session_id}".encode()).digest()[:16])
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def find_counterpart(
    uow: UnitOfWork, line: SessionLine, owner: str, before: Mapping[str, ImportedSession]
) -> StoredCounterpart:
    """Find the stored counterpart of a session. `before` has the results of the sessions before it in the file."""
    if line.parent is not None and not before[line.parent].reaches(line.base):
        return StoredCounterpart(ImportOutcome.ORPHANED, line.id, {})
    parent_id = before[line.parent].session_id if line.parent is not None else None
    for session_id in (line.id, replacement_id(line.id, owner)):
        session = uow.sessions.get(session_id)
        if uow.erasure.has_tombstone("session", session_id) or (
            session is not None and session.forgotten_seq is not None
        ):
            return StoredCounterpart(ImportOutcome.FORGOTTEN, session_id, {})
        if session is None:
            return StoredCounterpart(ImportOutcome.NEW, session_id, {})
        if _is_same_session(uow, session, line, owner, parent_id):
            return _read_counterpart(uow, session, line.base.turn)
    return StoredCounterpart(ImportOutcome.DIFFERENT, line.id, {})


def _is_same_session(uow: UnitOfWork, session: Session, line: SessionLine, owner: str, parent_id: str | None) -> bool:
    at = (session.owner, session.opened_at, str(session.key))
    if at != (owner, line.opened_at, line.key):
        return False
    # The store may have a parent that the file lacks, or may have lost one that was forgotten.
    if line.base.turn == session.base_turn and parent_id in (None, session.parent_id):
        return True
    seen = nearest_ancestor(uow, session)
    return seen.parent is not None and (seen.parent.id, seen.turn) == (parent_id, line.base.turn)


def _read_counterpart(uow: UnitOfWork, session: Session, base: int) -> StoredCounterpart:
    turns: dict[int, str] = {}
    after = 0
    while some := uow.turns.own_turns(session.id, after=after, up_to=_EVERY_TURN, limit=_TURNS_AT_ONCE):
        turns |= {turn.number: turn.turn_id for turn in some}
        after = some[-1].number
    logged = uow.log.of_kind(session.id, EntryKind.REWIND)
    rewinds = [some for entry in logged if (some := drop_inherited(rewound_turns(entry.detail), base, session))]
    delegations = len(uow.log.of_kind(session.id, EntryKind.DELEGATION))
    return StoredCounterpart(ImportOutcome.SAME, session.id, turns, rewinds, delegations, session.log_seq)


class Diverged(Exception):
    """The stored session and the file have diverged."""


def new_lines(found: StoredCounterpart, items: Iterable[Item]) -> Iterator[Item]:
    """Yield the lines that the store does not have yet. Raises `Diverged` before the first if the two diverged."""
    matched = rewinds = delegations = 0
    everything = (len(found.turns), len(found.rewinds), found.delegations)
    for item in items:
        match item:
            case TurnLine() if item.number in found.turns:
                if found.turns[item.number] != item.id:
                    raise Diverged
                matched += 1
                continue
            case RewindLine() if rewinds < len(found.rewinds):
                if found.rewinds[rewinds] != item.turns:
                    raise Diverged
                rewinds += 1
                continue
            case DelegationLine() if delegations < found.delegations:
                delegations += 1
                continue
            case _:
                if (matched, rewinds, delegations) != everything:
                    raise Diverged
                yield item
