"""Messages and commands in the inbox, before a turn claims them."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.boundary import Rewind
from everthread.domain.errors import BadInput, Busy, KeyMoved
from everthread.domain.model import (
    FORGOTTEN,
    Inbound,
    InboxRow,
    InboxState,
    Reply,
    ReplyState,
    Session,
    SessionKey,
)
from everthread.lifecycle.base import LifecycleBase, WriteContext, transaction
from everthread.lifecycle.boundaries import BoundaryResult, command_turn_id, cross
from everthread.lifecycle.validation import check_key, check_owner, check_size
from everthread.store.unit_of_work import UnitOfWork


class RetriedTurn(Struct, frozen=True):
    """The rewind of `retry_turn`, and the message that waits now; none if the rewind was refused."""

    crossing: BoundaryResult
    row: InboxRow | None = None


class InboxOperations(LifecycleBase):
    """Accept messages and commands, and put messages back into the inbox."""

    async def accept(self, inbound: Inbound, *, only_into: str = "") -> tuple[InboxRow, bool]:
        """Store a message in the inbox. Returns False as well if the platform had delivered it before.

        With `only_into`, the message is answered or set aside in that session. Raises `KeyMoved` if it can't be.
        """
        chars = check_size("a message", inbound.text)
        check_key(inbound.key)
        check_owner(inbound.owner)
        if inbound.update_id == "":
            # Platforms without update ids send "" or None.
            inbound = replace(inbound, update_id=None)

        def store(uow: UnitOfWork) -> tuple[InboxRow, bool]:
            row, new = uow.inbox.accept(inbound, self._clock.now())
            if new and only_into:
                _keep_in_session(uow, row, only_into, self._context("message"))
            return row, new

        return await self._write_by_size(store, chars)

    @transaction
    def answer_command(self, uow: UnitOfWork, row: InboxRow, text: str | None) -> Reply | None:
        """Mark a command as done, and put its answer into the outbox unless `text` is None."""
        uow.inbox.end_command(row.id)
        if text is None:
            return None
        inbound, now = row.inbound, self._clock.now()
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
        text = _last_user_text(uow, session) if session else ""
        # Crossing checks that the session is the owner's.
        crossing = cross(uow, key, Rewind(1), owner, context)
        if crossing.refusal is not None:
            return RetriedTurn(crossing)
        if not text.strip() or text.strip() == FORGOTTEN:
            raise BadInput("the last message was forgotten and can't be asked again; write it anew")
        row, _ = uow.inbox.accept(Inbound(key, owner, text, user=user), context.now)
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


def _keep_in_session(uow: UnitOfWork, row: InboxRow, session_id: str, context: WriteContext) -> None:
    """Check that an accepted message will be answered in this session, or in its continuation.

    Raises `KeyMoved` if the key is on another session, or a waiting command may still move it.
    """
    key = row.inbound.key
    _, session = uow.sessions.at(key)
    tip = uow.sessions.tip(session_id)
    if session is None or tip is None or (session.id, session.owner) != (tip.id, row.inbound.owner):
        raise KeyMoved(f"{key} has left session {session_id} meanwhile; send it again")
    if any(other.state is InboxState.WAITING and other.id != row.id for other in uow.inbox.commands(key)):
        raise KeyMoved(f"a command waits at {key}, which may lead to another session; send it again")
    if context.policies.of(key).expired(session.active_at, row.accepted_at):
        # Naming a session continues it, like a resume.
        uow.sessions.save(session.replace(active_at=row.accepted_at))


def _last_user_text(uow: UnitOfWork, session: Session) -> str:
    running = uow.slots.live(session.id)
    if running is not None:
        return "\n".join(row.inbound.text for row in uow.inbox.of_turn(running.ref.key, running.turn_id))
    for number in uow.turns.last_visible(session, 1):
        return "\n".join(turn.user_text for turn in uow.turns.view(session, after=number - 1, up_to=number).turns)
    return ""
