"""Invariants of reviews and delegated work, checked at each commit and at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.boundary import Rewind
from everthread.domain.model import (
    SUBAGENT_PLATFORM,
    NoteVersion,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
    TurnStatus,
)
from everthread.domain.review_window import Review, ReviewState, ReviewWindow
from everthread.lifecycle import BoundaryResult, CommittedTurn
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.agent_model import REVIEW
from tests.simulator.agent_process import REVIEW_EVERY
from tests.simulator.backends import Backend
from tests.simulator.note_invariants import NoteLedger
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import ModelSession, require

ReviewKey = tuple[str, ReviewWindow]


@dataclass
class ClaimedReview:
    """A review claimed by a process."""

    holder: str
    fence: int
    owner: str
    stopped: bool = False
    """A turn of the window was rewound since."""
    stale: bool = False
    """Data of the owner was forgotten since."""


@dataclass
class ReviewLedger:
    """Reference record of reviews. One process holds a window at a time, and a rewind stops its review."""

    reference: ReferenceModel
    database: Connection
    is_at_work: Callable[[str], bool]
    """Return True if a process of that name may still be running, as far as other processes can know."""
    took_over: Callable[[str, str], None]
    """Called with the new and the previous holder of a review."""
    counts: Counter[str] = field(default_factory=Counter[str])
    taken: dict[ReviewKey, ClaimedReview] = field(default_factory=dict[ReviewKey, ClaimedReview])
    done: set[ReviewKey] = field(default_factory=set[ReviewKey])
    stopped: defaultdict[str, list[ReviewWindow]] = field(
        default_factory=lambda: defaultdict[str, list[ReviewWindow]](list)
    )
    """Rewound turns by session, one window per rewind."""
    forgotten: int = 0

    def observe_result(self, operation: object | None, result: object) -> None:
        self.look(forgetting=isinstance(operation, asked.ForgetOperation))
        match operation, result:
            case asked.TakeReview(holder), (Review() as review, SessionRef() as ref):
                self._took(holder, review, ref)
            case asked.Note(ref, owner, _, Review() as review, holder), NoteVersion():
                self._noted(holder, review, ref, owner)
            case asked.Rewrite(ref, owner, _, review, holder), tuple():
                self._noted(holder, review, ref, owner)
            case asked.Cross(_, Rewind()), BoundaryResult(ref=SessionRef() as ref, hidden=hidden) if hidden:
                self._rewound(ref.session_id, ReviewWindow(min(hidden), max(hidden)))
            case asked.ForgetOperation(_, owner), int() if not isinstance(result, bool):
                self.forgotten += 1
                for taken in self.taken.values():
                    taken.stale |= taken.owner == owner
            case _:
                pass

    def look(self, *, forgetting: bool = False) -> None:
        """Check the changes of review rows. A finished review may restart only if forgetting removed its results."""
        changes = list(self.database.execute("SELECT * FROM review_changes ORDER BY rowid"))
        self.database.execute("DELETE FROM review_changes")
        for session_id, from_turn, to_turn, before, held_by, after, holder, writer in changes:
            place = (session_id, ReviewWindow(from_turn, to_turn))
            if before == after == "running":
                free = held_by == holder or not self.is_at_work(held_by)
                require(free, f"{holder} took {place} from {held_by}, which is at it")
            if before == "running" and after in ("waiting", "done", "failed"):
                require(writer == held_by, f"{writer} says that {place} is {after}, and {held_by} is at it")
            if before in ("done", "failed"):
                require(forgetting and after == "waiting", f"the review of {place} was {before}, and is {after}")
                self.done.discard(place)
                self.counts["reviews begun anew"] += 1
            if after == "done":
                self._finished(place, held_by)

    def _finished(self, place: ReviewKey, by: str) -> None:
        taken = self.taken.get(place)
        require(taken is not None and taken.holder == by, f"{by} has done {place}, which is {taken}'s")
        require(taken is not None and not taken.stopped, f"a turn of {place} was taken back, and its review is done")
        require(place not in self.done, f"{place} was reviewed twice")
        self.done.add(place)

    def _took(self, holder: str, review: Review, ref: SessionRef) -> None:
        place, session = (review.session_id, review.window), self.reference.sessions[review.session_id]
        require(ref.session_id == review.session_id, f"the review of {place} was taken as one of {ref.session_id}")
        require(session.kind is SessionKind.CHAT, f"{session.id} is {session.kind.value}, and is reviewed")
        require(not session.forgotten, f"{session.id} was forgotten, and is reviewed")
        require(ref.owner == session.owner, f"the review of {place} is in the name of {ref.owner}")
        before = self.taken.get(place)
        require(before is None or review.fence > before.fence, f"{place} was taken with fence {review.fence}")
        if before is not None and before.holder != holder:
            self.took_over(holder, before.holder)
        self.taken[place] = ClaimedReview(holder, review.fence, session.owner)
        self.counts["reviews taken"] += 1

    def _noted(self, holder: str, review: Review, ref: SessionRef | None, owner: str) -> None:
        place = (review.session_id, review.window)
        taken = self.taken.get(place)
        assert taken is not None
        require((taken.holder, taken.fence) == (holder, review.fence), f"{holder} wrote for {place}, it is {taken}'s")
        require(not taken.stopped, f"a turn of {place} was taken back, and its review has written a note")
        require(not taken.stale, f"something was forgotten since {place} was read, and its review has written a note")
        at = ref.session_id if ref is not None else None
        require(at == review.session_id, f"what the review of {place} wrote went to {at}")
        require(owner == self.reference.sessions[review.session_id].owner, f"the review of {place} wrote for {owner}")
        self.counts["notes of reviews"] += 1

    def _rewound(self, session_id: str, turns: ReviewWindow) -> None:
        self.stopped[session_id].append(turns)
        for (reviewed, window), taken in self.taken.items():
            if reviewed == session_id and _meet(window, turns):
                taken.stopped = True


def _meet(one: ReviewWindow, other: ReviewWindow) -> bool:
    return one.from_turn <= other.to_turn and other.from_turn <= one.to_turn


# --- Delegated work ---------------------------------------------------------------------------------------------------


def check_helpers(reference: ReferenceModel, commit: asked.Commit, done: CommittedTurn) -> None:
    """Check after a turn that its delegated work has ended and its sessions are unbound.

    A turn that another process had begun may leave some behind, which the next recovery settles.
    """
    if commit.claim.fence > 1 or done.status not in (TurnStatus.DONE, TurnStatus.INTERRUPTED):
        return
    for key in [key for key in reference.on if _is_of(key, commit.claim.turn_id)]:
        at = reference.on[key]
        # A user may have resumed the session and be talking in it.
        if at is not None and list(reference.on.values()).count(at) == 1:
            require(
                not reference.waiting[key], f"{commit.claim.turn_id} is over, and what it handed over waits at {key}"
            )
            require(False, f"{commit.claim.turn_id} is over, and {at}, which it handed over, is not ended")


def _is_of(key: SessionKey, turn_id: str) -> bool:
    return key.platform == SUBAGENT_PLATFORM and key.chat.startswith(f"{turn_id}-")


# --- At the end ------------------------------------------------------------------------------------------------------


def check_agents(
    reference: ReferenceModel,
    database: Connection,
    tables: UnitOfWork,
    backends: dict[str, Backend],
    ledger: ReviewLedger,
    notes: NoteLedger,
) -> None:
    ledger.look()
    notes.check_words()
    notes.check_back_ends(backends)
    for session in reference.sessions.values():
        stored = tables.sessions.get(session.id)
        assert stored is not None
        _reviews_are_done(tables, session, stored, ledger)
        _handed_over_work_is_over(tables, stored, ledger)
    _reviews_are_in_no_transcript(database, backends)
    _nothing_is_noted_twice(reference)
    left = list(database.execute("SELECT turn_id FROM slots"))
    require(not left, f"slots are left: {left}")


def _reviews_are_done(tables: UnitOfWork, session: ModelSession, stored: Session, ledger: ReviewLedger) -> None:
    rows = tables.reviews.of_session(session.id)
    if session.forgotten:
        require(not rows, f"{session.id} was forgotten, its reviews are left: {rows}")
        return
    reviewed_to = stored.base_turn
    for row in sorted(rows, key=lambda row: row.window.from_turn):
        place = (session.id, row.window)
        rewound = any(_meet(row.window, turns) for turns in ledger.stopped[session.id])
        match row.state:
            case ReviewState.STOPPED:
                require(rewound, f"the review of {place} was stopped, and nothing of it was taken back")
                continue
            case ReviewState.DONE:
                require(place in ledger.done, f"the review of {place} is done by nobody")
            case ReviewState.FAILED:
                require(row.fence >= 5, f"the review of {place} was given up after {row.fence} attempts")
            case _:
                require(False, f"the review of {place} is {row.state.value} for ever")
        ledger.counts[f"reviews {row.state.value}"] += 1
        require(row.window.from_turn > reviewed_to, f"turns of {place} were reviewed before")
        reviewed_to = row.window.to_turn
    mine = [number for number, _ in session.shown if number > reviewed_to]
    if session.kind is SessionKind.CHAT and not tables.sessions.keys_on(session.id):
        require(not mine, f"{session.id} was left, and its turns {mine} were never reviewed")
    elif session.kind is SessionKind.CHAT:
        require(len(mine) < REVIEW_EVERY, f"{session.id} has turns {mine} that are not to be reviewed")


def _handed_over_work_is_over(tables: UnitOfWork, stored: Session, ledger: ReviewLedger) -> None:
    if stored.key.platform != SUBAGENT_PLATFORM:
        return
    require(stored.kind is SessionKind.SUBAGENT, f"{stored.id} is handed-over work, and is {stored.kind.value}")
    # If the parent is forgotten at the moment of delegation, the work may have no parent.
    require(stored.parent_id or ledger.forgotten, f"{stored.id} is handed-over work of nobody: {stored}")
    require(tables.slots.live(stored.id) is None, f"the work in {stored.id} goes on for ever")


def _reviews_are_in_no_transcript(database: Connection, backends: dict[str, Backend]) -> None:
    rows = list(database.execute("SELECT content FROM messages WHERE instr(content, ?)", (REVIEW,)))
    require(not rows, f"a review stands in a transcript: {rows}")
    told = [e for b in backends.values() for e in b.effects if e.kind == "turn" and REVIEW in str(e.facts)]
    require(not told, f"a review was remembered as a turn: {told}")


def _nothing_is_noted_twice(reference: ReferenceModel) -> None:
    """Check that no fact is noted twice. A restarted review finds its earlier notes, and each fact comes from one
    message.
    """
    noted = Counter((owner, text) for owner, text, _ in reference.words.notes.values() if text.startswith("learnt in "))
    twice = [note for note, count in noted.items() if count > 1]
    require(not twice, f"noted twice: {twice}")
