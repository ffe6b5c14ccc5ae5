"""Read the state that a boundary is planned from."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.boundary import (
    Boundary,
    BoundaryState,
    Branch,
    Compress,
    Expire,
    New,
    Reset,
    Resume,
    Rewind,
    Suspend,
)
from everthread.domain.errors import Erased, NotFound
from everthread.domain.model import Binding, Cause, Session
from everthread.store.sessions import KeyState
from everthread.store.unit_of_work import UnitOfWork

REWIND_MAX = 1_000_000
INLINE_TURNS_MAX = 100


def owned_session(uow: UnitOfWork, session_id: str, owner: str) -> Session:
    """Return the owner's session. Raises `NotFound` alike for an unknown session and one of another owner."""
    session = uow.sessions.get(session_id)
    if session is None or session.owner != owner:
        raise NotFound(f"there is no session {session_id!r}; `sessions list` shows your sessions")
    if session.forgotten_seq is not None:
        raise Erased(f"session {session_id!r} was forgotten")
    return session


def read_state(
    uow: UnitOfWork, binding: Binding, here: KeyState, boundary: Boundary, owner: str, holder: str
) -> BoundaryState:
    """Read only what `plan()` needs for this boundary."""
    key, session = binding.key, here.session
    target = None
    if target_id := _target_id(boundary):
        target = owned_session(uow, target_id, owner)
        if not (isinstance(boundary, Branch) and boundary.as_it_was):
            target = uow.sessions.tip(target.id)
    parent = owned_session(uow, boundary.parent, owner) if isinstance(boundary, New) and boundary.parent else None
    state = BoundaryState(
        key,
        owner,
        session,
        binding.pending,
        other_keys=here.other_keys,
        running=here.running,
        used=binding.epoch > 0,
        kind=binding.kind,
        target=target,
        on_branch=isinstance(boundary, Resume) and target is not None and _is_on_branch(uow, session, target),
        parent=parent,
        titles=_used_titles(uow, boundary, target or session, owner),
    )
    if session is None:
        return state
    match boundary:
        case Rewind():
            if boundary.turns > INLINE_TURNS_MAX:
                uow.leave_event_loop()
            return replace(state, visible=uow.turns.last_visible(session, min(boundary.turns, REWIND_MAX)))
        case Compress():
            return replace(state, forget_count=uow.erasure.forget_count(owner))
        case Suspend():
            return replace(state, served=uow.sessions.is_served(holder, session.id))
        case Expire():
            waiting = uow.inbox.first_waiting(key) if here.awaited else None
            since = waiting.accepted_at if waiting else None
            return replace(state, waiting_since=since, delegated=uow.slots.delegated(session.id))
        case _:
            return state


def _is_on_branch(uow: UnitOfWork, session: Session | None, target: Session) -> bool:
    """Return True if `session` is a branch of the scheduled or delegated session `target`, or continues one."""
    if target.kind.remembered:
        return False
    while session is not None and session.cause is Cause.COMPRESSION:
        session = uow.sessions.get(session.parent_id or "")
    return session is not None and session.cause is Cause.BRANCH and session.parent_id == target.id


def _target_id(boundary: Boundary) -> str:
    """Return the session that a boundary names: the one to resume, or the one to branch from."""
    match boundary:
        case Resume():
            return boundary.target
        case Branch():
            return boundary.parent
        case _:
            return ""


def _used_titles(uow: UnitOfWork, boundary: Boundary, session: Session | None, owner: str) -> tuple[str, ...]:
    """Return the owner's titles that the new session's title must differ from."""
    wanted = boundary.title if isinstance(boundary, New | Reset | Branch) else ""
    if not wanted and session is not None and _inherits(boundary, session):
        wanted = session.title or ""
    return tuple(other.title or "" for other in uow.sessions.titled(owner, wanted)) if wanted else ()


def _inherits(boundary: Boundary, parent: Session) -> bool:
    """Return True if the boundary may open a child of `parent`, which is named after it."""
    return isinstance(boundary, Branch | Compress) or (isinstance(boundary, Resume) and not parent.kind.remembered)
