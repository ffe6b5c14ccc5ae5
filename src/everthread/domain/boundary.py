"""The boundary table. A boundary is a value; `plan` says, purely, what it closes, opens, hides and announces.

`Lifecycle.cross` is the only code that carries a plan out. To change what a command does to a session, change
this file and nothing else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from everthread.domain import titles
from everthread.domain.errors import BadBoundary, TitleTaken
from everthread.domain.model import Cause, Fate, HookCall, Kind, Session, SessionKey
from everthread.domain.reset_policy import ExpiryReason, ResetPolicy

SUMMARY_CHARS_MAX = 1_000_000


class New(Struct, frozen=True):
    """Start afresh. `kind` says what the key's sessions are for from now on; a title may be given at once.

    `parent` is the session that hands work over. Only delegated work has one, and it sees nothing of it.
    """

    title: str = ""
    kind: Kind | None = None
    parent: str = ""


class Reset(Struct, frozen=True):
    """What /reset does: `New` under its other name, told apart in the audit trail."""

    title: str = ""


class Resume(Struct, frozen=True):
    """Go to the tip of `target`'s continuation. An empty target changes nothing."""

    target: str


class Branch(Struct, frozen=True):
    """Go on in a child that sees the parent as it is now.

    `parent` is where the child grows out of, at the tip of its continuation; empty is the key's own session. One that
    the key is not on is not left by this, nor changed in any way: it may have ended, or be answered at another key.
    `as_it_was` is the parent itself, with all that it shows, though its conversation goes on behind a summary of it.
    """

    title: str = ""
    parent: str = ""
    as_it_was: bool = False


class Compress(Struct, frozen=True):
    """Go on in a child that sees `summary` instead of the turns up to `covers_to`.

    Made from the session as of `generation`; discarded if anything changed since, or was forgotten: `burials` is how
    often the owner had something forgotten then.
    """

    session_id: str
    generation: int
    summary: str
    covers_to: int
    burials: int | None = None


class Rewind(Struct, frozen=True):
    """Hide the last `turns` turns."""

    turns: int = 1


class Expire(Struct, frozen=True):
    """Leave a session that `policy` says is over, as of `at`."""

    policy: ResetPolicy
    at: float


class Suspend(Struct, frozen=True):
    """A process stops serving. The conversation goes on elsewhere, unless the key was this process's own.

    Then (`close_memory`) nobody will answer there: memory is closed, and what waits is set aside.
    """

    close_memory: bool = False


class Forget(Struct, frozen=True):
    """The session is forgotten: every key leaves it, and nothing of it is handed to memory any more."""

    session_id: str


Boundary = New | Reset | Resume | Branch | Compress | Rewind | Expire | Suspend | Forget


class Refusal(StrEnum):
    """Why a crossing changed nothing."""

    NOTHING_THERE = "nothing there"
    ALREADY_THERE = "already there"
    TURN_RUNNING = "a turn is running"
    WORK_WAITING = "a message waits"
    NOT_DUE = "not due"
    STALE = "the session has changed since"


class BoundaryState(Struct, frozen=True):
    """What a boundary finds, read inside its transaction."""

    key: SessionKey
    owner: str
    session: Session | None = None
    pending: Cause | None = None
    other_keys: tuple[SessionKey, ...] = ()
    running: SessionKey | None = None
    """The key whose turn is running in the session."""
    delegated: bool = False
    """Delegated work of the session is still running."""
    waiting_since: float | None = None
    served: bool = False
    """This process has served the session since its last finalize."""
    target: Session | None = None
    """Resume, and Branch of a session that is named: its tip, already checked to be the owner's."""
    visible: tuple[int, ...] = ()
    """Rewind: the newest visible turns, at most as many as asked for."""
    titles: tuple[str, ...] = ()
    """Titles of the owner that share a base with the one wanted."""
    kind: Kind = Kind.CHAT
    """What the key's sessions are for."""
    parent: Session | None = None
    """New: the session that hands work over, already checked to be the owner's."""
    burials: int = 0
    """Compress: how often the owner has had something forgotten."""


class Opening(Struct, frozen=True):
    """The first entry that a boundary writes to the log of the session it opens."""

    session: Session
    fresh: bool
    parent_id: str
    reset: bool
    reason: Cause
    summary: str | None = None
    """Compress: what the session starts with instead of the turns it covers."""

    @property
    def inherits(self) -> bool:
        """Whether the session shows turns of the one that is left for it."""
        return self.reason in (Cause.BRANCH, Cause.COMPRESSION)


class BoundaryPlan(Struct, frozen=True):
    """What to write. Every field's default means `nothing`."""

    refusal: Refusal | None = None
    closes: bool = False
    """Close the memory of the bound session, if it is dirty."""
    ends: str | None = None
    """End the bound session, for this reason."""
    opens: Opening | None = None
    moves: tuple[SessionKey, ...] = ()
    """Keys whose epoch grows; they end up on the opened session, else on none."""
    stays: bool = False
    """The moved keys stay on the bound session (only their epoch and its generation grow)."""
    pending: Cause | None = None
    fate: Fate = Fate.LIVE
    """What becomes of the running turn."""
    sets_aside: bool = False
    hides: tuple[int, ...] = ()
    hooks: tuple[HookCall, ...] = ()


def plan(place: BoundaryState, boundary: Boundary, *, new_id: str, now: float) -> BoundaryPlan:
    """What `boundary` does to a key that is at `place`."""
    match boundary:
        case New() | Reset():
            return _start_afresh(place, boundary, new_id, now)
        case Resume():
            return _resume(place, boundary)
        case Branch():
            return _branch(place, boundary, new_id, now)
        case Compress():
            return _compress(place, boundary, new_id, now)
        case Rewind():
            return _rewind(place, boundary)
        case Expire():
            return _expire(place, boundary)
        case Suspend():
            return _suspend(place, boundary)
        case Forget():
            return _forget(place, boundary)
    assert_never(boundary)


def _start_afresh(place: BoundaryState, boundary: New | Reset, new_id: str, now: float) -> BoundaryPlan:
    kind = (boundary.kind if isinstance(boundary, New) else None) or place.kind
    explicit = Cause.NEW if isinstance(boundary, New) else Cause.RESET
    parent_id = _delegating(place, boundary)
    cause = Cause.DELEGATION if parent_id else place.pending or explicit
    session = Session(
        id=new_id,
        owner=place.owner,
        key=place.key,
        kind=kind,
        cause=cause,
        opened_at=now,
        active_at=now,
        parent_id=parent_id or None,
        title=_free_title(boundary.title, place.titles),
    )
    # A key's very first session replaces nothing, so nothing was reset for its plugins.
    announces_reset = place.session is not None or place.pending is not None
    return BoundaryPlan(
        closes=True,
        ends=_end_if_last(place, "new" if explicit is Cause.NEW else "reset"),
        opens=Opening(session, fresh=True, parent_id=parent_id, reset=True, reason=cause),
        moves=(place.key,),
        fate=_fate_of_own_turn(place),
        sets_aside=True,
        hooks=(
            *_finalize(place),
            *((HookCall("on_session_reset", new_id, place.key.platform),) if announces_reset else ()),
        ),
    )


def _delegating(place: BoundaryState, boundary: New | Reset) -> str:
    """The session that hands work over to the new one; empty if none does."""
    if not isinstance(boundary, New) or not boundary.parent:
        return ""
    if boundary.kind is not Kind.SUBAGENT:
        raise BadBoundary("only delegated work has a parent; leave it out, or give the kind `subagent`")
    if place.parent is None or place.parent.kind in (Kind.SUBAGENT, Kind.NOTES):
        raise BadBoundary(f"session {boundary.parent!r} can't delegate; conversations and scheduled work can")
    return place.parent.id


def _resume(place: BoundaryState, boundary: Resume) -> BoundaryPlan:
    target = place.target
    if not boundary.target or target is None or target.kind is Kind.NOTES:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    if place.session is not None and target.id == place.session.id:
        return BoundaryPlan(refusal=Refusal.ALREADY_THERE)
    # With no session to leave, the parent that the target already has is the one to tell.
    parent_id = place.session.id if place.session is not None else target.parent_id or ""
    return BoundaryPlan(
        closes=True,
        opens=Opening(target, fresh=False, parent_id=parent_id, reset=False, reason=Cause.RESUME),
        moves=(place.key,),
        fate=_fate_of_own_turn(place),
        sets_aside=True,
        hooks=_finalize(place),
    )


def _branch(place: BoundaryState, boundary: Branch, new_id: str, now: float) -> BoundaryPlan:
    parent = place.target if boundary.parent else place.session
    if parent is None or parent.kind is Kind.NOTES:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    if boundary.title:
        title = _free_title(boundary.title, place.titles)
    else:
        title = titles.next_title(parent.title, place.titles) if parent.title else None
    child = _child(parent, new_id, now, Cause.BRANCH, title, floor=parent.floor, summary_id=parent.summary_id)
    return BoundaryPlan(
        closes=True,
        opens=Opening(child, fresh=True, parent_id=parent.id, reset=False, reason=Cause.BRANCH),
        moves=(place.key,),
        fate=_fate_of_own_turn(place),
        sets_aside=True,
        hooks=_finalize(place),
    )


def _compress(place: BoundaryState, boundary: Compress, new_id: str, now: float) -> BoundaryPlan:
    parent = place.session
    if parent is None or parent.id != boundary.session_id or parent.generation != boundary.generation:
        return BoundaryPlan(refusal=Refusal.STALE)
    if boundary.burials not in (None, place.burials):
        return BoundaryPlan(refusal=Refusal.STALE)
    if place.running is not None:
        return BoundaryPlan(refusal=Refusal.TURN_RUNNING)
    if not parent.floor <= boundary.covers_to <= parent.last_turn:
        raise BadBoundary(f"covers_to {boundary.covers_to} is outside {parent.floor}..{parent.last_turn}")
    if not boundary.summary.strip() or len(boundary.summary) > SUMMARY_CHARS_MAX:
        raise BadBoundary(f"a summary has 1 to {SUMMARY_CHARS_MAX} characters")
    title = titles.next_title(parent.title, place.titles) if parent.title else None
    child = _child(parent, new_id, now, Cause.COMPRESSION, title, floor=boundary.covers_to, summary_id=new_id)
    return BoundaryPlan(
        closes=True,
        ends="compressed",
        opens=Opening(
            child,
            fresh=True,
            parent_id=parent.id,
            reset=False,
            reason=Cause.COMPRESSION,
            summary=boundary.summary,
        ),
        moves=(place.key, *place.other_keys),
    )


def _rewind(place: BoundaryState, boundary: Rewind) -> BoundaryPlan:
    if boundary.turns < 1:
        raise BadBoundary(f"can't take back {boundary.turns} turns; give a number from 1")
    if place.session is None or not (place.visible or place.running):
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    if place.running is None:
        return BoundaryPlan(moves=(place.key,), stays=True, hides=place.visible)
    # The running turn is the last one, and so the first to be taken back.
    hidden = place.visible[-(boundary.turns - 1) :] if boundary.turns > 1 else ()
    return BoundaryPlan(moves=(place.key,), stays=True, fate=Fate.HIDDEN, hides=hidden)


def _expire(place: BoundaryState, boundary: Expire) -> BoundaryPlan:
    session = place.session
    if session is None:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    reason = boundary.policy.expired(session.active_at, boundary.at)
    if reason is None:
        return BoundaryPlan(refusal=Refusal.NOT_DUE)
    if place.running is not None or place.delegated:
        return BoundaryPlan(refusal=Refusal.TURN_RUNNING)
    due = boundary.policy.due(session.active_at)
    if place.waiting_since is not None and due is not None and place.waiting_since < due:
        return BoundaryPlan(refusal=Refusal.WORK_WAITING)
    return BoundaryPlan(
        closes=True,
        ends=_end_if_last(place, reason.value),
        moves=(place.key,),
        pending=Cause.IDLE if reason is ExpiryReason.IDLE else Cause.DAILY,
        hooks=_finalize(place),
    )


def _suspend(place: BoundaryState, boundary: Suspend) -> BoundaryPlan:
    if place.session is None:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    return BoundaryPlan(
        closes=boundary.close_memory,
        sets_aside=boundary.close_memory,
        hooks=_finalize(place) if place.served else (),
    )


def _forget(place: BoundaryState, boundary: Forget) -> BoundaryPlan:
    if place.session is None or place.session.id != boundary.session_id:
        return BoundaryPlan(refusal=Refusal.STALE)
    return BoundaryPlan(ends="forgotten", moves=(place.key, *place.other_keys), hooks=_finalize(place))


def _child(
    parent: Session, new_id: str, now: float, cause: Cause, title: str | None, *, floor: int, summary_id: str | None
) -> Session:
    return Session(
        id=new_id,
        owner=parent.owner,
        key=parent.key,
        kind=parent.kind,
        cause=cause,
        opened_at=now,
        active_at=now,
        parent_id=parent.id,
        title=title,
        floor=floor,
        base_turn=parent.last_turn,
        last_turn=parent.last_turn,
        summary_id=summary_id,
    )


def as_of(child: Session, parent: Session) -> Session:
    """The child with its parent seen as it is when it has been left, with all that was still written to it."""
    return child.but(base_turn=parent.last_turn, last_turn=parent.last_turn, base_seq=parent.log_seq)


def _end_if_last(place: BoundaryState, reason: str) -> str | None:
    return reason if place.session is not None and not place.other_keys else None


def _fate_of_own_turn(place: BoundaryState) -> Fate:
    """A turn that another key runs in the session left is none of this key's business."""
    return Fate.LATE if place.running == place.key else Fate.LIVE


def _finalize(place: BoundaryState) -> tuple[HookCall, ...]:
    if place.session is None:
        return ()
    return (HookCall("on_session_finalize", place.session.id, place.key.platform),)


def _free_title(wanted: str, taken: tuple[str, ...]) -> str | None:
    if not wanted:
        return None
    title = titles.clean(wanted)
    if titles.fold(title) in {titles.fold(other) for other in taken}:
        free = titles.next_title(title, taken)
        raise TitleTaken(f"another session is already called {title!r}; choose another title, say {free!r}")
    return title
