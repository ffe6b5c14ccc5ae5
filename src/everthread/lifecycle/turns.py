"""One turn, from the acceptance of its message to the commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.boundary import Expire, New
from everthread.domain.clock_rules import credible_time
from everthread.domain.errors import Busy, Fenced, KeyMoved, TurnCancelled
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    SUBAGENT_PLATFORM,
    Fate,
    HookCall,
    Inbound,
    InboxRow,
    InboxState,
    Message,
    Reply,
    ReplyState,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
    Slot,
    Thought,
    ToolRow,
    ToolState,
    TurnStatus,
    delegating_turn,
)
from everthread.domain.spend import SpendEntry
from everthread.lifecycle.base import LifecycleBase, WriteContext, transaction
from everthread.lifecycle.boundaries import append, close_if_left, cross, set_earlier_timers
from everthread.lifecycle.quotas import check_message
from everthread.lifecycle.reviews import schedule_full, schedule_rest
from everthread.lifecycle.validation import INLINE_CHARS_MAX, TURN_CHARS_MAX, check_key, check_owner, check_size
from everthread.log_context import log_fields, log_info
from everthread.store.recall_scope import chat_of_turn
from everthread.store.recalled import RecalledItem
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.lifecycle")


PROCESS_TTL_S = 30.0


_CHARS_PER_ROW = 300


"""A row costs about as much to write as this many characters."""

_CANCELLED = {
    Fate.LATE: "stopped: the conversation was left from elsewhere",
    Fate.HIDDEN: "stopped: the message was undone from elsewhere",
    Fate.LIVE: "stopped: the conversation was changed from elsewhere",
}


class TurnClaim(Struct, frozen=True):
    """The right to commit one turn."""

    turn_id: str
    ref: SessionRef
    """The session that the turn belongs to, even if its key moves meanwhile."""
    holder: str
    fence: int
    message: InboxRow
    tools: tuple[ToolRow, ...] = ()
    """Tool calls that were started or done before a crash; empty for a new turn."""
    steered: tuple[InboxRow, ...] = ()
    """Messages that the turn took up before a crash."""
    kind: SessionKind = SessionKind.CHAT
    """The kind of the session."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The user's messages in this turn so far."""
        return (self.message.inbound.text, *(row.inbound.text for row in self.steered))


class CommittedTurn(Struct, frozen=True):
    """A committed turn."""

    ref: SessionRef
    number: int
    status: TurnStatus
    reply: Reply | None
    reviews_due: bool = False
    """A review is due now, of this session or another."""


class TurnOperations(LifecycleBase):
    """Accept messages, begin turns and commit them."""

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
            if new:
                check_message(uow, self._quotas, row)
            if new and only_into:
                _keep_in_session(uow, row, only_into, self._context("message"))
            return row, new

        return await self._write_by_size(store, chars)

    async def begin_turn(self, key: SessionKey) -> TurnClaim | None:
        """Claim the key's next message, if one waits. Raises `Busy` while a turn runs in its session."""
        check_key(key)
        return await self._store.write_inline(lambda uow: begin(uow, key, self._new_id(), self._context("message")))

    async def check_acting(self, claim: TurnClaim) -> None:
        """Raise `TurnCancelled` or `Fenced` if the turn must begin nothing more; see `acting_slot`."""
        await self._store.read_inline(lambda uow: acting_slot(uow, claim))

    async def acting_turns(self) -> frozenset[tuple[str, int]]:
        """Return turn id and fence of this process's turns that may act."""
        return await self._store.read_inline(lambda uow: uow.slots.acting_of(self._holder))

    @transaction
    def steer(self, uow: UnitOfWork, claim: TurnClaim, inbox_id: int) -> InboxRow | None:
        """Make a waiting message part of the running turn. Returns None if it does not wait any more."""
        acting_slot(uow, claim)
        ref, row = claim.ref, uow.inbox.get(inbox_id)
        if row is None or row.state is not InboxState.WAITING or row.inbound.key != ref.key:
            return None
        if row.inbound.owner != ref.owner:
            return None
        if row.inbound.has_pending_media:
            return None
        before = uow.inbox.next(row.inbound.key)
        if before is not None and (before.inbound.command or before.inbound.has_pending_media) and before.id < row.id:
            # A command may change the session, and a message may not overtake one whose files are being fetched.
            return None
        uow.inbox.assign(row.id, ref.session_id, claim.turn_id)
        return row

    async def start_tool(
        self, claim: TurnClaim, call_id: str, name: str, arguments: str, thought: Thought | None = None
    ) -> str:
        """Record that a tool call starts, so that recovery knows that its outcome is unknown.

        Returns the arguments to call the tool with: without the facts that were forgotten while the turn ran.
        """
        chars = check_size("a tool call", call_id, name, arguments, thought.content if thought else "")
        row = ToolRow(claim.turn_id, call_id, name, arguments, ToolState.STARTED, thought=thought)

        def start(uow: UnitOfWork) -> str:
            slot = acting_slot(uow, claim)
            started = row
            if slot.forgotten:
                # A model rejects its signed reasoning if it was changed.
                started = replace(row, arguments=without_forgotten(uow, slot, arguments), thought=None)
            uow.slots.start_tool(started, claim.ref.owner)
            return started.arguments

        return await self._write_by_size(start, chars)

    async def finish_tool(self, claim: TurnClaim, call_id: str, result: str) -> None:
        """Record the result of a tool call."""
        chars = check_size("a tool's result", result)

        def finish(uow: UnitOfWork) -> None:
            slot = claimed_slot(uow, claim)
            uow.slots.finish_tool(claim.turn_id, call_id, without_forgotten(uow, slot, result))

        await self._write_by_size(finish, chars)

    async def stored_reply(self, turn_id: str) -> Reply | None:
        """Return a turn's reply as stored so far."""
        return await self._store.read_inline(lambda uow: uow.outbox.reply(turn_id))

    @transaction
    def draft_reply(
        self,
        uow: UnitOfWork,
        claim: TurnClaim,
        text: str,
        platform_message_id: str | None = None,
        sent_after: str = "",
    ) -> Reply:
        """Record the text streamed so far and its message id, so that recovery edits that message.

        While the id is unknown, `sent_after` tells from where on to look for the message. For a turn that is over or
        was abandoned only the id is recorded, because the sender of its reply needs it.
        """
        reply = uow.outbox.reply(claim.turn_id)
        unsent = reply is not None and reply.state in (ReplyState.DRAFT, ReplyState.READY) and not reply.parts
        if platform_message_id and reply is not None and unsent and not reply.platform_message_id:
            return uow.outbox.put_reply(replace(reply, platform_message_id=platform_message_id))
        slot = acting_slot(uow, claim)
        ref = slot.ref
        if reply is not None and reply.platform_message_id == "":
            # An earlier beginning of the reply may have been sent.
            sent_after = reply.sent_after
        return uow.outbox.put_reply(
            Reply(
                claim.turn_id,
                ref.key,
                ref.session_id,
                ref.owner,
                without_forgotten(uow, slot, text),
                ReplyState.DRAFT,
                self._clock.now(),
                platform_message_id,
                sent_after=sent_after,
            )
        )

    async def commit_turn(
        self,
        claim: TurnClaim,
        messages: Sequence[Message],
        reply: str | None,
        *,
        interrupted: bool = False,
        spent: Sequence[SpendEntry] = (),
        recalled: Sequence[RecalledItem] = (),
    ) -> CommittedTurn:
        """Store a whole turn, its cost and the recall that it was shown.

        Raises `Fenced` if the claim is not valid any more.
        """
        texts = [part for message in messages for part in message.texts()]
        chars = check_size("a turn", reply or "", *texts, chars_max=TURN_CHARS_MAX)
        committed = await self._write_by_size(
            lambda uow: commit(
                uow,
                claim,
                messages,
                reply,
                self._context("turn"),
                interrupted=interrupted,
                spent=spent,
                recalled=recalled,
            ),
            chars + len(messages) * _CHARS_PER_ROW,
        )
        log_turn(committed, claim.turn_id)
        return committed


def begin(uow: UnitOfWork, key: SessionKey, turn_id: str, context: WriteContext) -> TurnClaim | None:
    """Claim the key's next message, and open a session if the key is on none.

    Returns None if no message waits, if a command waits before it, which may change the session, or if the message's
    files were not fetched yet.
    """
    row = uow.inbox.next(key)
    if row is None or row.inbound.command or row.inbound.has_pending_media:
        return None
    if len(row.inbound.text) > INLINE_CHARS_MAX:
        uow.leave_event_loop()
    session, epoch = _session_for(uow, key, row, context)
    if uow.slots.live(session.id) is not None:
        raise Busy(f"a turn is running in session {session.id}; wait for it or stop it")
    ref = session.ref_at(key, epoch)
    slot = Slot(turn_id, ref, context.holder, 1, Fate.LIVE, row.id, context.now)
    uow.slots.add(slot)
    uow.inbox.assign(row.id, session.id, turn_id)
    active_at = max(credible_time(session.active_at, context.now), credible_time(row.accepted_at, context.now))
    set_earlier_timers(uow, session, active_at, context)
    uow.sessions.save(session.replace(active_at=active_at))
    uow.sessions.serve(context.holder, session.id, key)
    uow.leases.keep_alive(context.holder, context.now, PROCESS_TTL_S)
    return TurnClaim(turn_id, ref, context.holder, slot.fence, row, kind=session.kind)


def claimed_slot(uow: UnitOfWork, claim: TurnClaim) -> Slot:
    """Return the slot of a claim. Raises `Fenced` if another process took the turn over, or it was dropped."""
    slot = uow.slots.get(claim.turn_id)
    if slot is None or (slot.holder, slot.fence) != (claim.holder, claim.fence):
        raise Fenced(f"this process no longer holds turn {claim.turn_id}")
    return slot


def acting_slot(uow: UnitOfWork, claim: TurnClaim) -> Slot:
    """Return the slot of a turn that may act. Every effect of a turn passes this check first.

    Raises `Fenced` like `claimed_slot`, and `TurnCancelled` if a boundary has cancelled the turn or the turn that it
    works for. A cancelled turn may still record the call that was in flight, and be committed.
    """
    slot, key = uow.slots.acting(claim.turn_id), claim.ref.key
    if slot is None or (slot.holder, slot.fence) != (claim.holder, claim.fence):
        raise TurnCancelled(_CANCELLED[claimed_slot(uow, claim).fate])
    if key.platform == SUBAGENT_PLATFORM and uow.slots.acting(delegating_turn(key)) is None:
        raise TurnCancelled("stopped: the turn that delegated this work was cancelled")
    return slot


def commit(
    uow: UnitOfWork,
    claim: TurnClaim,
    messages: Sequence[Message],
    reply: str | None,
    context: WriteContext,
    *,
    interrupted: bool = False,
    spent: Sequence[SpendEntry] = (),
    recalled: Sequence[RecalledItem] = (),
) -> CommittedTurn:
    """Write messages, log entry, reply, inbox row and slot, all to the session in which the turn began."""
    slot = claimed_slot(uow, claim)
    if slot.forgotten:
        # The message is still answered: only the words that were forgotten meanwhile are left out.
        messages, reply = _turn_without_forgotten(uow, slot, messages, reply)
    session = uow.sessions.get(slot.ref.session_id)
    assert session is not None
    status = _status(slot.fate, interrupted)
    number = session.last_turn + 1
    chat = chat_of_turn(uow, slot.ref)
    uow.turns.add(session, number, slot.turn_id, status, messages, context.now, chat)
    if recalled:
        uow.recalled.add(session.id, number, session.owner, recalled)
    is_live = slot.fate is Fate.LIVE
    active_at = max(credible_time(session.active_at, context.now), context.now) if is_live else session.active_at
    set_earlier_timers(uow, session, active_at, context)
    session = session.replace(last_turn=number, active_at=active_at)
    if status.remembered:
        session = append(uow, session, slot.ref, EntryKind.TURN, context.now, number=number)
    uow.inbox.end_turn(slot.ref.key, slot.turn_id, InboxState.DONE)
    for cost in spent:
        uow.spend.settle(cost, slot.ref, slot.turn_id, context.now)
    uow.slots.drop(slot.turn_id)
    uow.slots.drop_tools(slot.turn_id)
    sent = _put_reply(uow, slot, reply, context.now)
    if slot.fate is not Fate.LIVE:
        session = close_if_left(uow, session, slot.ref, context.now)
    elif (timer := context.policies.timer(slot.ref.key, session.active_at)) is not None:
        uow.leases.arm(timer)
    uow.sessions.save(session)
    if slot.fate is Fate.LIVE:
        schedule_full(uow, session, context.review_every, context.now)
    elif slot.fate is Fate.LATE:
        schedule_rest(uow, session, context.review_every, context.now)
    if "on_turn_end" in context.hooks:
        call = HookCall("on_turn_end", session.id, slot.ref.key.platform, {"number": str(number)})
        uow.leases.add_hook(slot.ref.key, call, context.now)
    reviews_due = context.review_every > 0 and uow.reviews.is_due(context.now)
    return CommittedTurn(slot.ref, number, status, sent, reviews_due)


def without_forgotten(uow: UnitOfWork, slot: Slot, text: str) -> str:
    """Erase the facts that were forgotten while the turn ran. Costs nothing for other turns."""
    if not slot.forgotten:
        return text
    # Every position of the text is looked at.
    uow.leave_event_loop()
    return uow.erasure.erase_marked((text,), slot.ref.owner, slot.forgotten)[0]


def _turn_without_forgotten(
    uow: UnitOfWork, slot: Slot, messages: Sequence[Message], reply: str | None
) -> tuple[list[Message], str | None]:
    uow.leave_event_loop()
    # All texts at once: large ones are searched together, outside the transaction.
    texts = [text for message in messages for text in message.texts()]
    texts += [reply] if reply is not None else []
    erased = dict(zip(texts, uow.erasure.erase_marked(texts, slot.ref.owner, slot.forgotten), strict=True))

    def erase(message: Message) -> Message:
        calls = tuple(replace(call, arguments=erased[call.arguments]) for call in message.tool_calls)
        reasoning = erased[message.reasoning] if message.reasoning else message.reasoning
        return replace(message, content=erased[message.content], tool_calls=calls, reasoning=reasoning)

    return [erase(message) for message in messages], erased[reply] if reply is not None else None


def log_turn(committed: CommittedTurn, turn_id: str) -> None:
    """Log ids only, never text."""
    if not log.isEnabledFor(logging.INFO):
        return
    ref = committed.ref
    ids = {"session": ref.session_id, "owner": ref.owner, "turn": committed.number, "turn_id": turn_id}
    log_info(log, "turn committed", {**ids, "status": committed.status.value, **log_fields(committed.ref.key)})


def _session_for(uow: UnitOfWork, key: SessionKey, row: InboxRow, context: WriteContext) -> tuple[Session, int]:
    """Return the session for a message and the key's epoch. The time of acceptance decides on expiry."""
    policy, accepted_at = context.policies.of(key), credible_time(row.accepted_at, context.now)
    binding, session = uow.sessions.at(key)
    if session is not None and policy.expired(credible_time(session.active_at, accepted_at), accepted_at):
        # Expired on behalf of its owner, even if another person wrote the message.
        cross(uow, key, Expire(policy, accepted_at), session.owner, replace(context, actor="expiry"))
        binding, session = uow.sessions.at(key)
    if session is None or session.owner != row.inbound.owner:
        opening = replace(context, before_inbox=row.id, actor="message")
        cross(uow, key, New(), row.inbound.owner, opening)
        binding, session = uow.sessions.at(key)
    assert session is not None
    assert binding is not None
    return session, binding.epoch


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


def _status(fate: Fate, interrupted: bool) -> TurnStatus:
    match fate:
        case Fate.LATE:
            return TurnStatus.LATE
        case Fate.HIDDEN:
            return TurnStatus.HIDDEN
        case Fate.LIVE:
            return TurnStatus.INTERRUPTED if interrupted else TurnStatus.DONE


def _put_reply(uow: UnitOfWork, slot: Slot, text: str | None, now: float) -> Reply | None:
    if text is None:
        return None
    # A reply to a conversation that its reader has left must not appear in the new one.
    state = ReplyState.READY if slot.fate is Fate.LIVE else ReplyState.WITHHELD
    reply = Reply(slot.turn_id, slot.ref.key, slot.ref.session_id, slot.ref.owner, text, state, now)
    return uow.outbox.put_reply(reply)
