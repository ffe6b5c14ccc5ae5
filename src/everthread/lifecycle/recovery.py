"""Recover turns that were abandoned or whose process died."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.boundary import Suspend
from everthread.domain.model import SUBAGENT_PLATFORM, Cause, Fate, Message, ReplyState, Role, Session, SessionKey, Slot
from everthread.lifecycle.base import LifecycleBase, WriteContext, transaction
from everthread.lifecycle.boundaries import cross
from everthread.lifecycle.turns import PROCESS_TTL_S, TurnClaim, claimed_slot, commit
from everthread.store.unit_of_work import UnitOfWork

SWEEP_AFTER_S = 24 * 3600.0
NO_HOLDER = ""
"""The holder of an abandoned turn; no process has this name."""


class RecoveryOperations(LifecycleBase):
    """Find, resume and abandon turns."""

    @transaction
    def recover(self, uow: UnitOfWork) -> tuple[str, ...]:
        """Store the cancelled turns of dead processes. Returns the ids of the turns to `resume_turn`.

        Turns of delegated work are not among them: the turn that waits for the work resumes it.
        """
        context = self._context("recovery")
        uow.leases.sweep(context.now - SWEEP_AFTER_S)
        unsettled = [slot for slot in uow.slots.orphans(context.now) if not _store_if_cancelled(uow, slot, context)]
        _set_aside_orphaned_work(uow, context)
        return tuple(slot.turn_id for slot in unsettled if not _is_delegated(uow, slot))

    @transaction
    def resume_turn(self, uow: UnitOfWork, turn_id: str) -> TurnClaim | None:
        """Take over a turn that `recover` returned. Returns None if another process was faster."""
        context = self._context("recovery")
        if turn_id not in {slot.turn_id for slot in uow.slots.orphans(context.now)}:
            return None
        slot = uow.slots.take_over(turn_id, context.holder)
        uow.sessions.serve(context.holder, slot.ref.session_id, slot.ref.key)
        uow.leases.keep_alive(context.holder, context.now, PROCESS_TTL_S)
        return _claim_of(uow, slot)

    @transaction
    def abandon_turn(self, uow: UnitOfWork, claim: TurnClaim) -> None:
        """Release a turn that can't be continued, with its tools and its draft; `recover` returns it to any process.

        `claim.fence` grows each time. To give a turn up for good, commit it with `interrupted=True`.
        """
        if not _store_if_cancelled(uow, claimed_slot(uow, claim), self._context("recovery")):
            uow.slots.take_over(claim.turn_id, NO_HOLDER)


def _claim_of(uow: UnitOfWork, slot: Slot) -> TurnClaim:
    row, *steered = uow.inbox.of_turn(slot.ref.key, slot.turn_id)
    tools = uow.slots.tools(slot.turn_id)
    session = uow.sessions.get(slot.ref.session_id)
    assert session is not None
    return TurnClaim(slot.turn_id, slot.ref, slot.holder, slot.fence, row, tools, tuple(steered), session.kind)


def _set_aside_orphaned_work(uow: UnitOfWork, context: WriteContext) -> None:
    """Set aside delegated work that has not begun and whose delegating turn is over."""
    for key in uow.inbox.keys_waiting():
        if key.platform != SUBAGENT_PLATFORM:
            continue
        _, session = uow.sessions.at(key)
        if session is not None and _is_unwanted(uow, session, key):
            cross(uow, key, Suspend(close_memory=True), session.owner, context)


def _store_if_cancelled(uow: UnitOfWork, slot: Slot, context: WriteContext) -> bool:
    """Store a cancelled turn as far as it got. Returns False for a turn that must run again."""
    session = uow.sessions.get(slot.ref.session_id)
    if slot.fate is Fate.LIVE and not _is_unwanted(uow, session, slot.ref.key):
        return False
    claim = _claim_of(uow, slot)
    commit(uow, claim, [Message(Role.USER, text) for text in claim.texts], None, context, interrupted=True)
    draft = uow.outbox.reply(slot.turn_id)
    if draft is not None and draft.state is ReplyState.DRAFT:
        uow.outbox.put_reply(replace(draft, state=ReplyState.WITHHELD))
    return True


def _is_unwanted(uow: UnitOfWork, session: Session | None, key: SessionKey) -> bool:
    """Return True for delegated work that no turn waits for any more."""
    parent_id = _delegating_session(uow, session, key)
    return parent_id is not None and not uow.slots.of_session(parent_id)


def _is_delegated(uow: UnitOfWork, slot: Slot) -> bool:
    return _delegating_session(uow, uow.sessions.get(slot.ref.session_id), slot.ref.key) is not None


def _delegating_session(uow: UnitOfWork, session: Session | None, key: SessionKey) -> str | None:
    """Return the session that delegated work to the key, which is on `session`; None for any other key."""
    while session is not None and session.cause is Cause.COMPRESSION:
        session = uow.sessions.get(session.parent_id or "")
    delegated = session is not None and session.cause is Cause.DELEGATION and session.key == key
    return session.parent_id if session is not None and delegated else None
