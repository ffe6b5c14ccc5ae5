"""Boundaries as values, and the pure function `plan` that decides the changes of each.

A boundary changes the session that a key is on, or the turns that a session shows. `lifecycle.boundary_state` reads a
`BoundaryState`, `plan` returns a `BoundaryPlan`, and `Lifecycle.cross` carries it out in the same transaction. To
change the effect of a command on a session, change only this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from everthread.domain import titles
from everthread.domain.clock_rules import credible_time
from everthread.domain.errors import BadBoundary, TitleTaken
from everthread.domain.model import Cause, Fate, HookCall, Session, SessionKey, SessionKind
from everthread.domain.reset_policy import ExpiryReason, ResetPolicy

SUMMARY_CHARS_MAX = 1_000_000


class New(Struct, frozen=True):
    """Start an empty session.

    `kind` becomes the kind of the key's sessions; None keeps the current kind. `parent` is the session that delegates
    work. Only a session of kind `subagent` has one, and it shows none of the parent's turns.
    """

    title: str = ""
    kind: SessionKind | None = None
    parent: str = ""


class Reset(Struct, frozen=True):
    """Start an empty session, like `New`. The audit trail records `/reset` under its own name."""

    title: str = ""


class Resume(Struct, frozen=True):
    """Move the key to the tip of the session `target`. An empty target is refused.

    Memory leaves out scheduled and delegated sessions. A person who resumes one gets a branch of kind `chat` instead.
    """

    target: str


class Branch(Struct, frozen=True):
    """Move the key to a new child that shows the parent's turns as of now.

    `parent` names the session to branch from; its tip is used. Empty means the key's own session. A named parent that
    the key is not on is not changed: it may have ended, or be in use at another key. `as_it_was` branches from the
    named session itself instead of its tip, with the turns that a later compression replaced by a summary.
    """

    title: str = ""
    parent: str = ""
    as_it_was: bool = False


class Compress(Struct, frozen=True):
    """Move all keys of a session to a new child that shows `summary` instead of the turns up to `covers_to`.

    The summary was made at `generation` of the session, at `forget_count` of its owner. The boundary is
    refused as stale if either number has changed since. None skips the check of `forget_count`.
    """

    session_id: str
    generation: int
    summary: str
    covers_to: int
    forget_count: int | None = None


class Rewind(Struct, frozen=True):
    """Hide the last `turns` visible turns. A running turn counts as the last one."""

    turns: int = 1


class Expire(Struct, frozen=True):
    """Leave a session that is expired under `policy` at the time `at`."""

    policy: ResetPolicy
    at: float


class Suspend(Struct, frozen=True):
    """Finalize a session because this process stops serving it. The key stays on the session.

    `close_memory` is for a key that no other process serves: close the session's memory, and set waiting messages
    aside, because no process will answer them.
    """

    close_memory: bool = False


class Forget(Struct, frozen=True):
    """End a forgotten session and move every key off it. Its pending entries are not delivered, so it is not closed."""

    session_id: str


Boundary = New | Reset | Resume | Branch | Compress | Rewind | Expire | Suspend | Forget


class Refusal(StrEnum):
    """The reason why a boundary changed nothing."""

    NOTHING_THERE = "nothing there"
    ALREADY_THERE = "already there"
    TURN_RUNNING = "a turn is running"
    WORK_WAITING = "a message waits"
    NOT_DUE = "not due"
    STALE = "the session has changed since"


class BoundaryState(Struct, frozen=True):
    """The stored state that `plan` decides on, read inside the boundary's transaction."""

    key: SessionKey
    owner: str
    session: Session | None = None
    """The session that the key is on."""
    pending: Cause | None = None
    """The expiry that took the key off its last session."""
    used: bool = False
    """The key has been on a session before."""
    other_keys: tuple[SessionKey, ...] = ()
    """The other keys on the session."""
    running: SessionKey | None = None
    """The key whose turn is running in the session."""
    delegated: bool = False
    """Expire: delegated work of the session is still running."""
    waiting_since: float | None = None
    """Expire: the time at which the oldest waiting message was accepted."""
    served: bool = False
    """Suspend: this process has served the session since its last finalize."""
    target: Session | None = None
    """Resume, and Branch with a named parent: the session to go to or to branch from. It belongs to the owner."""
    on_branch: bool = False
    """Resume of a scheduled or delegated session: the key is already on a branch of it."""
    visible: tuple[int, ...] = ()
    """Rewind: the numbers of the newest visible turns, in ascending order; at most as many as requested."""
    titles: tuple[str, ...] = ()
    """Titles of the owner's sessions that share a base with the requested title."""
    kind: SessionKind = SessionKind.CHAT
    """The kind of the key's sessions."""
    parent: Session | None = None
    """New: the session that delegates work. It belongs to the owner."""
    forget_count: int = 0
    """Compress: the owner's number of forget requests."""


class Opening(Struct, frozen=True):
    """The session that a boundary creates or reopens, with the fields of its `opened` log entry."""

    session: Session
    fresh: bool
    """The session is new. False if an existing session is reopened."""
    parent_id: str
    """The parent that memory providers receive; empty if there is none."""
    reset: bool
    """The session starts empty, and sets the kind of the key."""
    reason: Cause
    summary: str | None = None
    """Compress: the text that replaces the covered turns."""

    @property
    def inherits(self) -> bool:
        """Return True if the session shows turns of its parent."""
        return self.reason in (Cause.BRANCH, Cause.COMPRESSION)


class BoundaryPlan(Struct, frozen=True):
    """The changes that a boundary makes. The default of every field means no change."""

    refusal: Refusal | None = None
    closes: bool = False
    """Close the memory of the key's session, if it is dirty."""
    ends: str | None = None
    """End the key's session, for this reason."""
    opens: Opening | None = None
    """Create or reopen this session."""
    moves: tuple[SessionKey, ...] = ()
    """Increase the epoch of these keys, and bind them to the opened session, or to none if nothing is opened."""
    stays: bool = False
    """Keep the moved keys on their session, and increase its generation."""
    pending: Cause | None = None
    """Record this expiry in the binding, as the cause of the key's next session."""
    fate: Fate = Fate.LIVE
    """Set the fate of the running turn."""
    sets_aside: bool = False
    """Set aside the messages that wait at the key."""
    hides: tuple[int, ...] = ()
    """Hide the turns with these numbers."""
    hooks: tuple[HookCall, ...] = ()
    """Queue these plugin hooks."""


def plan(place: BoundaryState, boundary: Boundary, *, new_id: str, now: float) -> BoundaryPlan:
    """Decide the changes of `boundary`, given the stored state `place`.

    `new_id` becomes the id of the session, if the boundary creates one. Raises `BadBoundary`, `BadTitle` or
    `TitleTaken` if the boundary itself is invalid.
    """
    match boundary:
        case New() | Reset():
            return _start_afresh(place, boundary, new_id, now)
        case Resume():
            return _resume(place, boundary, new_id, now)
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
    # The first session of a key replaces none, so plugins receive no reset.
    return _leave(
        place,
        Opening(session, fresh=True, parent_id=parent_id, reset=True, reason=cause),
        ends=_end_if_last(place, "new" if explicit is Cause.NEW else "reset"),
        hooks=(HookCall("on_session_reset", new_id, place.key.platform),) if place.used else (),
    )


def _delegating(place: BoundaryState, boundary: New | Reset) -> str:
    """Return the id of the session that delegates work to the new one, or an empty string."""
    if not isinstance(boundary, New) or not boundary.parent:
        return ""
    if boundary.kind is not SessionKind.SUBAGENT:
        raise BadBoundary("only delegated work has a parent; leave it out, or give the kind `subagent`")
    if place.parent is None or place.parent.kind in (SessionKind.SUBAGENT, SessionKind.NOTES):
        raise BadBoundary(f"session {boundary.parent!r} can't delegate; conversations and scheduled work can")
    return place.parent.id


def _resume(place: BoundaryState, boundary: Resume, new_id: str, now: float) -> BoundaryPlan:
    target = place.target
    if not boundary.target or target is None or target.kind is SessionKind.NOTES:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    if place.on_branch:
        return BoundaryPlan(refusal=Refusal.ALREADY_THERE)
    if _branch_kind(place, target) is not target.kind:
        return _branch_from(place, target, "", new_id, now)
    if place.session is not None and target.id == place.session.id:
        return BoundaryPlan(refusal=Refusal.ALREADY_THERE)
    # Without a session to leave, memory providers receive the target's own parent.
    parent_id = place.session.id if place.session is not None else target.parent_id or ""
    return _leave(place, Opening(target, fresh=False, parent_id=parent_id, reset=False, reason=Cause.RESUME))


def _branch(place: BoundaryState, boundary: Branch, new_id: str, now: float) -> BoundaryPlan:
    parent = place.target if boundary.parent else place.session
    if parent is None or parent.kind is SessionKind.NOTES:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    return _branch_from(place, parent, boundary.title, new_id, now)


def _branch_from(place: BoundaryState, parent: Session, title: str, new_id: str, now: float) -> BoundaryPlan:
    child = _child(
        parent,
        new_id,
        now,
        Cause.BRANCH,
        _free_title(title, place.titles) if title else _next_title(parent, place.titles),
        floor=parent.floor,
        summary_id=parent.summary_id,
    )
    child = child.replace(key=place.key, kind=_branch_kind(place, parent))
    return _leave(place, Opening(child, fresh=True, parent_id=parent.id, reset=False, reason=Cause.BRANCH))


def _branch_kind(place: BoundaryState, parent: Session) -> SessionKind:
    """Return the kind of a branch: the key's own, so that a person's turns are remembered. A chat stays a chat."""
    return parent.kind if parent.kind is SessionKind.CHAT else place.kind


def _compress(place: BoundaryState, boundary: Compress, new_id: str, now: float) -> BoundaryPlan:
    parent = place.session
    if parent is None or parent.id != boundary.session_id or parent.generation != boundary.generation:
        return BoundaryPlan(refusal=Refusal.STALE)
    if boundary.forget_count not in (None, place.forget_count):
        return BoundaryPlan(refusal=Refusal.STALE)
    if place.running is not None:
        return BoundaryPlan(refusal=Refusal.TURN_RUNNING)
    if not parent.floor <= boundary.covers_to <= parent.last_turn:
        raise BadBoundary(f"covers_to {boundary.covers_to} is outside {parent.floor}..{parent.last_turn}")
    if not boundary.summary.strip() or len(boundary.summary) > SUMMARY_CHARS_MAX:
        raise BadBoundary(f"a summary has 1 to {SUMMARY_CHARS_MAX} characters")
    title = _next_title(parent, place.titles)
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
        raise BadBoundary(f"can't undo {boundary.turns} turns; give a number from 1")
    if place.session is None or not (place.visible or place.running):
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    if place.running is None:
        return BoundaryPlan(moves=(place.key,), stays=True, hides=place.visible)
    # The running turn is the last one, so it is the first to be hidden.
    hidden = place.visible[-(boundary.turns - 1) :] if boundary.turns > 1 else ()
    return BoundaryPlan(moves=(place.key,), stays=True, fate=Fate.HIDDEN, hides=hidden)


def _expire(place: BoundaryState, boundary: Expire) -> BoundaryPlan:
    session = place.session
    if session is None:
        return BoundaryPlan(refusal=Refusal.NOTHING_THERE)
    active_at = credible_time(session.active_at, boundary.at)
    reason = boundary.policy.expired(active_at, boundary.at)
    if reason is None:
        return BoundaryPlan(refusal=Refusal.NOT_DUE)
    if place.running is not None or place.delegated:
        return BoundaryPlan(refusal=Refusal.TURN_RUNNING)
    due = boundary.policy.due(active_at)
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


def rebase(child: Session, parent: Session) -> Session:
    """Return the child with its base at the parent's end, after leaving the parent has added turns or log entries."""
    return child.replace(base_turn=parent.last_turn, last_turn=parent.last_turn, base_seq=parent.log_seq)


def _end_if_last(place: BoundaryState, reason: str) -> str | None:
    """Return the reason to end the session, or None while other keys are on it."""
    return reason if place.session is not None and not place.other_keys else None


def _leave(
    place: BoundaryState, opens: Opening, *, ends: str | None = None, hooks: tuple[HookCall, ...] = ()
) -> BoundaryPlan:
    """Return the plan that moves the key from its session to another. A running turn of another key goes on."""
    return BoundaryPlan(
        closes=True,
        ends=ends,
        opens=opens,
        moves=(place.key,),
        fate=Fate.LATE if place.running == place.key else Fate.LIVE,
        sets_aside=True,
        hooks=(*_finalize(place), *hooks),
    )


def _finalize(place: BoundaryState) -> tuple[HookCall, ...]:
    """Return the hook that announces the end of the key's session, if it has one."""
    if place.session is None:
        return ()
    return (HookCall("on_session_finalize", place.session.id, place.key.platform),)


def _next_title(parent: Session, taken: tuple[str, ...]) -> str | None:
    """Return the title of a child of `parent`: the parent's, with the next number."""
    return titles.next_title(parent.title, taken) if parent.title else None


def _free_title(wanted: str, taken: tuple[str, ...]) -> str | None:
    """Return the cleaned title, or None for an empty one. Raises `TitleTaken` if another session has it."""
    if not wanted:
        return None
    title = titles.clean(wanted)
    if titles.fold(title) in {titles.fold(other) for other in taken}:
        free = titles.next_title(title, taken)
        raise TitleTaken(f"another session is already called {title!r}; choose another title, such as {free!r}")
    return title
