"""Answers to commands, and messages that are put into the inbox again or by a schedule."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.boundary import Rewind
from everthread.domain.errors import BadInput, Busy
from everthread.domain.model import (
    FORGOTTEN,
    Inbound,
    InboxRow,
    Reply,
    ReplyState,
    Session,
    SessionKey,
)
from everthread.domain.pairing import is_group
from everthread.domain.rights import accounts_of
from everthread.lifecycle.base import LifecycleBase, transaction
from everthread.lifecycle.boundaries import BoundaryResult, command_turn_id, cross
from everthread.lifecycle.quotas import check_message
from everthread.lifecycle.validation import check_key, check_owner
from everthread.store.unit_of_work import UnitOfWork


class RetriedTurn(Struct, frozen=True):
    """The rewind of `retry_turn`, and the message that waits now; none if the rewind was refused."""

    crossing: BoundaryResult
    row: InboxRow | None = None


class InboxOperations(LifecycleBase):
    """Answer commands, retry turns and begin scheduled tasks."""

    @transaction
    def answer_command(
        self, uow: UnitOfWork, row: InboxRow, text: str | None, forget_count: int | None = None
    ) -> Reply | None:
        """Mark a command as done, and put its answer into the outbox unless `text` is None.

        `forget_count` is the owner's count before the command ran: facts that were forgotten since are left out.
        """
        uow.inbox.end_command(row.id)
        if text is None:
            return None
        inbound, now = row.inbound, self._clock.now()
        if forget_count is not None:
            text = uow.erasure.erase_facts_forgotten_since(text, inbound.owner, forget_count)
        here = uow.sessions.ref(inbound.key)
        session_id = here.session_id if here is not None and here.owner == inbound.owner else ""
        return uow.outbox.put_reply(
            Reply(command_turn_id(row.id), inbound.key, session_id, inbound.owner, text, ReplyState.READY, now)
        )

    @transaction
    def retry_turn(
        self, uow: UnitOfWork, key: SessionKey, *, owner: str, command_id: int | None = None, user: str = ""
    ) -> RetriedTurn:
        """Rewind the running turn, or else the last one, and put its message back into the inbox.

        In a branch this also works for a turn from before the branch; the parent keeps that turn.
        """
        check_key(key)
        check_owner(owner)
        context = self._context("user", command_id)
        ref = uow.sessions.ref(key)
        session = uow.sessions.get(ref.session_id) if ref else None
        running = uow.slots.live(session.id) if session and session.owner == owner else None
        if running is not None and running.ref.key != key:
            raise Busy("the answer is being written for another chat in this conversation; wait for it")
        turn_id, text = _last_message(uow, session) if session else ("", "")
        # Asking again must not run the words of others with the rights of the one who asks.
        accounts = _original_accounts(uow, turn_id) if is_group(owner) else ()
        # Crossing checks that the session is the owner's.
        crossing = cross(uow, key, Rewind(1), owner, context)
        if crossing.refusal is not None:
            return RetriedTurn(crossing)
        if not text.strip() or text.strip() == FORGOTTEN:
            raise BadInput("the last message was forgotten and can't be asked again; write it again")
        row, _ = uow.inbox.accept(Inbound(key, owner, text, user=user, original_accounts=accounts), context.now)
        check_message(uow, self._quotas, row)
        return RetriedTurn(crossing, row)

    @transaction
    def begin_scheduled(
        self, uow: UnitOfWork, schedule_id: str, due_at: float, profile: str
    ) -> tuple[SessionKey, InboxRow] | None:
        """Put the prompt of one occurrence of a task into the inbox of the task's own session.

        Returns None if the occurrence is over, or another one of the task is running.
        """
        from everthread.lifecycle.schedules import begin_occurrence  # noqa: PLC0415 - only scheduled tasks need it

        return begin_occurrence(uow, schedule_id, due_at, profile, self._context("schedule"))


def _last_message(uow: UnitOfWork, session: Session) -> tuple[str, str]:
    """Return the running turn, or else the last one, and the text that it answers; both empty if there is none."""
    running = uow.slots.live(session.id)
    if running is not None:
        rows = uow.inbox.of_turn(running.ref.key, running.turn_id)
        return running.turn_id, "\n".join(row.inbound.text for row in rows)
    for number in uow.turns.last_visible(session, 1):
        for turn in uow.turns.view(session, after=number - 1, up_to=number).turns:
            return turn.turn_id, turn.user_text
    return "", ""


def _original_accounts(uow: UnitOfWork, turn_id: str) -> tuple[str, ...]:
    """Return the accounts that wrote the messages of a turn. An unknown one is empty, and counts as any guest."""
    accounts = {account for row in uow.inbox.of_any_turn(turn_id) for account in accounts_of(row.inbound)}
    return tuple(sorted(accounts or {""}))
