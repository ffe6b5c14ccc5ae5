"""Carry out a boundary: the only place that changes a key's session and what a session shows.

`boundary_state` reads, `domain.boundary.plan()` decides, and this module writes the rows and the log entries. Memory
providers learn of a boundary from the log, through `memory.delivery`.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from everthread.domain.boundary import (
    Boundary,
    BoundaryPlan,
    BoundaryState,
    Forget,
    New,
    Opening,
    Refusal,
    Reset,
    Resume,
    Suspend,
    plan,
    rebase,
)
from everthread.domain.errors import AlreadyDone, NotFound
from everthread.domain.events import EntryKind, LogEntry
from everthread.domain.model import (
    Binding,
    Cause,
    Fate,
    HookCall,
    InboxRow,
    InboxState,
    Message,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
    TurnStatus,
)
from everthread.domain.recall_scope import chat_of
from everthread.domain.reset_policy import timer_name
from everthread.domain.review_window import ReviewWindow
from everthread.lifecycle.base import LifecycleBase, WriteContext, transaction
from everthread.lifecycle.boundary_state import read_state
from everthread.lifecycle.quotas import check_opening
from everthread.lifecycle.reviews import schedule_rest
from everthread.lifecycle.validation import check_key, check_owner
from everthread.log_context import log_fields, log_info
from everthread.store.sessions import BoundaryRow, KeyState
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.lifecycle")

EXPIRY_NOTICES = {
    Cause.IDLE: "Nobody wrote here for a while, so that conversation has ended; /resume goes back to it.",
    Cause.DAILY: "A new day: yesterday's conversation has ended; /resume goes back to it.",
}


class BoundaryResult(Struct, frozen=True):
    """The result of a boundary."""

    kind: str
    ref: SessionRef | None
    """The session that the key is on now."""
    left: str | None = None
    """The session that the key was on before."""
    refusal: Refusal | None = None
    """The reason why nothing changed."""
    set_aside: tuple[InboxRow, ...] = ()
    hidden: tuple[int, ...] = ()
    """Rewind: the turns that are hidden now, without the running one."""
    cancelled: bool = False
    """A turn was running; its reply is not shown."""
    unanswered: tuple[InboxRow, ...] = ()
    """The messages that the cancelled turn was to answer."""


class BoundaryOperations(LifecycleBase):
    """Change the session that a key is on."""

    async def cross(
        self,
        key: SessionKey,
        boundary: Boundary,
        *,
        owner: str,
        actor: str = "user",
        command_id: int | None = None,
    ) -> BoundaryResult:
        """Carry out a boundary of a key in one transaction.

        `command_id` is the inbox row of the command that asks for it. A boundary that leaves the session sets aside the
        messages before that row and keeps those after it. Raises `AlreadyDone` if the command was carried out already.
        """
        if isinstance(boundary, Forget):
            raise TypeError("use `Lifecycle.forget`, which also erases the session's text")
        if not isinstance(boundary, Boundary):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{boundary!r} is not a boundary")
        if not isinstance(key, SessionKey):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise TypeError(f"{key!r} is not a session key")
        check_key(key)
        check_owner(owner)
        crossing = await self._store.write_inline(
            lambda uow: cross(uow, key, boundary, owner, self._context(actor, command_id))
        )
        log_boundary(crossing)
        return crossing

    async def hand_over(self, key: SessionKey, session_id: str, text: str, *, owner: str) -> BoundaryResult:
        """Resume a session at another key of its owner, and send `text` there."""
        crossing = await self._hand_over(key, session_id, text, owner)
        log_boundary(crossing)
        return crossing

    @transaction
    def _hand_over(self, uow: UnitOfWork, key: SessionKey, session_id: str, text: str, owner: str) -> BoundaryResult:
        crossing = cross(uow, key, Resume(session_id), owner, self._context("handoff"))
        if crossing.refusal is None and crossing.ref is not None:
            name, at = f"handoff-{self._new_id()}", self._clock.now()
            uow.outbox.put_reply(Reply(name, key, crossing.ref.session_id, owner, text, ReplyState.READY, at))
        return crossing

    async def suspend(self, *, close_memory: bool = False) -> tuple[BoundaryResult, ...]:
        """Tell the plugins that this process stops serving its sessions, and close their memory if asked to."""
        crossings = await self._suspend(close_memory)
        for crossing in crossings:
            log_boundary(crossing)
        return crossings

    @transaction
    def _suspend(self, uow: UnitOfWork, close_memory: bool) -> tuple[BoundaryResult, ...]:
        context = self._context("shutdown")
        # A key that moved was finalized at that time, and may be on a session of another owner now.
        served = [(key, uow.sessions.ref(key), session_id) for session_id, key in uow.sessions.served(context.holder)]
        owners = {key: ref.owner for key, ref, session_id in served if ref is not None and ref.session_id == session_id}
        return tuple(cross(uow, key, Suspend(close_memory), owner, context) for key, owner in owners.items())


def cross(uow: UnitOfWork, key: SessionKey, boundary: Boundary, owner: str, context: WriteContext) -> BoundaryResult:
    """Carry out a boundary inside a transaction."""
    kind = type(boundary).__name__.lower()
    here = uow.sessions.key_state(key, timer_name(key))
    binding, session = here.binding or Binding(key, owner, None, 0), here.session
    if session is not None and session.owner != owner and not isinstance(boundary, New | Reset):
        # A new owner of a key may start a session there, but not touch the previous owner's.
        raise NotFound(f"{key} is on no session of yours; start one with /new")
    if context.command_id is not None:
        _begin_command(uow, context.command_id)
    state = read_state(uow, binding, here, boundary, owner, context.holder)
    decision = plan(state, boundary, new_id=context.new_id(), now=context.now)
    if decision.refusal is not None:
        return BoundaryResult(kind, session.ref_at(key, binding.epoch) if session else None, refusal=decision.refusal)
    if decision.opens is not None and decision.opens.fresh:
        check_opening(uow, context.quotas, decision.opens.session, context.now)

    if decision.sets_aside and here.awaited:
        uow.leave_event_loop()
    unanswered = _cancel_running(uow, session, decision, owner) if session is not None else ()
    waiting = uow.inbox.waiting(key, context.before_inbox) if decision.sets_aside and here.awaited else ()
    aside: tuple[InboxRow, ...] = ()
    if session is not None:
        session, aside = _set_aside(uow, session, waiting, context.now)
        session = _leave(uow, session, state, binding.epoch, decision, context.now)
        if decision.closes:
            schedule_rest(uow, session, context.review_every, context.now)
    parent = _parent(decision.opens, state, session) if decision.opens else None
    opened = _open(uow, decision.opens, parent, binding, context.now, state.forget_count) if decision.opens else None
    if opened is not None and len(aside) < len(waiting):
        opened, more = _set_aside(uow, opened, tuple(row for row in waiting if row not in aside), context.now)
        uow.sessions.save(opened)
        aside += more
    on = opened or (session if decision.stays or not decision.moves else None)
    _move(uow, binding, decision, on, owner)
    epoch = binding.epoch + (1 if decision.moves else 0)
    left = session.id if session else None
    uow.sessions.add_boundary(
        BoundaryRow(kind, key, owner, left, on.id if on else None, epoch, context.actor, context.now)
    )
    _queue_hooks(uow, key, session, opened if decision.opens and decision.opens.fresh else None, decision, context)
    _queue_expiry_notice(uow, key, session, decision, context)
    _set_timer(uow, key, here, on, context)
    if decision.opens is not None and not decision.opens.fresh:
        set_earlier_timers(uow, decision.opens.session, context.now, context)
    return BoundaryResult(
        kind,
        on.ref_at(key, epoch) if on else None,
        left,
        set_aside=aside,
        hidden=decision.hides,
        cancelled=decision.fate is not Fate.LIVE,
        unanswered=unanswered,
    )


def append(
    uow: UnitOfWork,
    session: Session,
    ref: SessionRef,
    kind: EntryKind,
    now: float,
    *,
    number: int | None = None,
    detail: dict[str, object] | None = None,
) -> Session:
    """Write the next entry of a session's log. Returns the session with its new positions, not yet saved."""
    seq = session.log_seq + 1
    uow.log.append(LogEntry(ref, seq, kind, now, number, detail))
    return session.replace(log_seq=seq, dirty_seq=seq if kind.dirties else session.dirty_seq)


def close(uow: UnitOfWork, session: Session, ref: SessionRef, now: float) -> Session:
    """Close the session's memory, if anything was written since the last close."""
    if not session.dirty:
        return session
    through = session.log_seq
    detail: dict[str, object] = {"through": through, "turn": session.last_turn}
    return append(uow, session, ref, EntryKind.CLOSE, now, detail=detail).replace(closed_seq=through)


def close_if_left(uow: UnitOfWork, session: Session, ref: SessionRef, now: float) -> Session:
    """Close the memory of a session that no key is on: no boundary will do so later."""
    if session.kind is SessionKind.NOTES or uow.sessions.keys_on(session.id) or uow.slots.of_session(session.id):
        return session
    return close(uow, session, ref, now)


def command_turn_id(inbox_id: int) -> str:
    """Return the id that the reply to a command has in place of a turn's."""
    return f"order-{inbox_id}"


def log_boundary(crossing: BoundaryResult) -> None:
    """Log ids only, never text."""
    if not log.isEnabledFor(logging.INFO):
        return
    session = crossing.ref.session_id if crossing.ref is not None else crossing.left
    verb = "refused" if crossing.refusal is not None else "crossed"
    fields = log_fields(crossing.ref.key) if crossing.ref is not None else {}
    log_info(log, f"{crossing.kind}: {verb}", {"session": session, "boundary": crossing.kind, **fields})


def _begin_command(uow: UnitOfWork, inbox_id: int) -> None:
    row = uow.inbox.get(inbox_id)
    if row is None or row.state is not InboxState.WAITING:
        raise AlreadyDone(f"command {inbox_id} has already run")
    uow.inbox.assign(inbox_id, "", command_turn_id(inbox_id))


def _cancel_running(uow: UnitOfWork, session: Session, decision: BoundaryPlan, owner: str) -> tuple[InboxRow, ...]:
    """Mark the running turn as cancelled. Returns the owner's messages that it was to answer."""
    running = uow.slots.live(session.id) if decision.fate is not Fate.LIVE else None
    if running is None:
        return ()
    uow.slots.set_fate(running.turn_id, decision.fate)
    return tuple(row for row in uow.inbox.of_turn(running.ref.key, running.turn_id) if row.inbound.owner == owner)


def _set_aside(
    uow: UnitOfWork, session: Session, rows: tuple[InboxRow, ...], now: float
) -> tuple[Session, tuple[InboxRow, ...]]:
    """Store unanswered messages in a session of the person who wrote them. Messages of other people stay waiting."""
    theirs = tuple(row for row in rows if row.inbound.owner == session.owner)
    for row in theirs:
        number = session.last_turn + 1
        turn_id = f"aside-{row.id}"
        message = Message(Role.USER, row.inbound.text)
        uow.turns.add(session, number, turn_id, TurnStatus.SET_ASIDE, (message,), now, chat_of(row.inbound.key))
        uow.inbox.set_aside(row.id, session.id, turn_id)
        session = session.replace(last_turn=number)
    return session, theirs


def _leave(
    uow: UnitOfWork, session: Session, state: BoundaryState, epoch: int, decision: BoundaryPlan, now: float
) -> Session:
    """Hide, close and end what the plan says, and save the session."""
    ref = session.ref_at(state.key, epoch)
    generation = session.generation
    if decision.stays:
        session = session.replace(generation=session.generation + 1)
    if decision.hides:
        detail: dict[str, object] = {"turns": list(decision.hides)}
        session = append(uow, session, session.ref_at(state.key, epoch + 1), EntryKind.REWIND, now, detail=detail)
        uow.turns.hide(session, decision.hides, session.log_seq)
        uow.reviews.stop(session.id, ReviewWindow(min(decision.hides), max(decision.hides)))
    if decision.closes:
        session = close(uow, session, ref, now)
    if decision.ends:
        session = session.ended(decision.ends, now)
    if session.generation != generation and not all(key in decision.moves for key in (state.key, *state.other_keys)):
        uow.sessions.renew(session)
    else:
        uow.sessions.save(session)
    return session


def _parent(opening: Opening, state: BoundaryState, session: Session | None) -> Session | None:
    """Return the session whose turns the opened one inherits. `session` has the changes made by leaving it."""
    if not opening.inherits:
        return None
    return session if session is not None and session.id == opening.session.parent_id else state.target


def _open(
    uow: UnitOfWork, opening: Opening, parent: Session | None, binding: Binding, now: float, forget_count: int
) -> Session:
    """Create a session or reopen one, and log it. `forget_count` is the count at which its summary is valid."""
    session = opening.session
    if not opening.fresh:
        session = session.replace(ended_at=None, end_reason=None, active_at=now)
    elif parent is not None:
        session = rebase(session, parent)
    detail: dict[str, object] = {"parent": opening.parent_id, "reset": opening.reset, "reason": opening.reason.value}
    ref = session.ref_at(binding.key, binding.epoch + 1)
    # The opened entry comes before any turn, so that a provider knows the parent first.
    session = append(uow, session, ref, EntryKind.OPENED, now, detail=detail)
    if opening.fresh:
        uow.sessions.add(session)
        if opening.summary is not None:
            uow.derived.put_summary(session, opening.summary, forget_count)
        # Work that runs unattended has a prompt of its own, which would mislead a chat.
        if parent is not None and opening.reason is Cause.BRANCH and parent.kind is session.kind:
            # Byte for byte, so that the prompt cache stays warm.
            uow.derived.copy_prefix(parent, session, now)
    else:
        uow.sessions.save(session)
    return session


def _move(uow: UnitOfWork, binding: Binding, decision: BoundaryPlan, on: Session | None, owner: str) -> None:
    """Bind the keys to their next session, or to none."""
    for key in decision.moves:
        at = binding if key == binding.key else uow.sessions.binding(key)
        assert at is not None
        key_owner = owner if key == binding.key else at.owner
        # Only a fresh start sets the kind of a key: a person who resumes a scheduled session still chats.
        kind = on.kind if on and decision.opens and decision.opens.reset else at.kind
        bound = Binding(key, key_owner, on.id if on else None, at.epoch + 1, decision.pending, kind)
        uow.sessions.bind(bound, same_owner=at.owner == key_owner)


def _queue_hooks(
    uow: UnitOfWork,
    key: SessionKey,
    left: Session | None,
    fresh: Session | None,
    decision: BoundaryPlan,
    context: WriteContext,
) -> None:
    """Queue the plugin hooks; they run in this order after the commit."""
    if left is not None:
        if any(call.hook == "on_session_finalize" for call in decision.hooks):
            uow.sessions.end_serving(left.id)
        elif fresh is not None and fresh.cause is Cause.COMPRESSION:
            uow.sessions.move_serving(left.id, fresh.id)
    if not context.hooks:
        return
    session_id = fresh.id if fresh else left.id if left else ""
    boundary = HookCall("on_boundary", session_id, key.platform, {"id": str(uow.sessions.last_boundary())})
    start = (HookCall("on_session_start", fresh.id, key.platform),) if fresh is not None else ()
    for call in (*decision.hooks, *start, boundary):
        if call.hook in context.hooks:
            uow.leases.add_hook(key, call, context.now)


def _queue_expiry_notice(
    uow: UnitOfWork, key: SessionKey, session: Session | None, decision: BoundaryPlan, context: WriteContext
) -> None:
    """Tell the user that the session expired, on platforms where this is switched on."""
    if decision.pending is not None and session is not None and key.platform in context.expiry_notice_platforms:
        name, text = f"ended-{uow.sessions.last_boundary()}", EXPIRY_NOTICES[decision.pending]
        uow.outbox.put_reply(Reply(name, key, session.id, session.owner, text, ReplyState.READY, context.now))


def set_earlier_timers(uow: UnitOfWork, session: Session, active_at: float, context: WriteContext) -> None:
    """Set the timers of all keys on a session whose activity was ahead of the clock, and is replaced by `active_at`.

    They were set under that clock too, and nothing else would find them: they may be due in a year.
    """
    if active_at < session.active_at:
        for key in uow.sessions.keys_on(session.id):
            if (timer := context.policies.timer(key, active_at)) is not None:
                uow.leases.arm(timer)


def _set_timer(uow: UnitOfWork, key: SessionKey, here: KeyState, on: Session | None, context: WriteContext) -> None:
    if on is None:
        if here.timer_at is not None:
            uow.leases.disarm(timer_name(key))
        return
    timer = context.policies.timer(key, on.active_at)
    # A timer that was set under a clock that was ahead is replaced.
    if timer is not None and (here.timer_at is None or timer.due_at < here.timer_at):
        uow.leases.arm(timer)
