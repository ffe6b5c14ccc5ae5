"""One turn, from the message in the inbox to the commit, and what becomes of one that was cut short.

Turns, from the message that comes in to the reply that goes out.

Asking the last thing again: the turn is taken back and its words come in once more, in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.boundary import Expire, New, Rewind, Suspend
from everthread.domain.errors import BadInput, Busy, Fenced, KeyMoved
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    FORGOTTEN,
    HANDED_OVER,
    Cause,
    Fate,
    HookCall,
    Inbound,
    InboxRow,
    InboxState,
    Message,
    Prefix,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionRef,
    Slot,
    Thought,
    ToolRow,
    ToolState,
    TurnStatus,
)
from everthread.domain.spend import Spent
from everthread.lifecycle.base import Units, WriteContext
from everthread.lifecycle.boundaries import Crossing, arm_expiry, cross, order_turn, owned
from everthread.lifecycle.event_log import append, close_if_left, ref_to
from everthread.lifecycle.reviews import note_full, note_rest
from everthread.lifecycle.validation import JOTTED_CHARS_MAX, TURN_CHARS_MAX, check_key, check_owner, check_size
from everthread.log_context import log_fields, log_info
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.lifecycle")

PROCESS_TTL_S = 30.0
REMEMBERED_S = 24 * 3600.0
NOBODY = ""
"""Who holds a turn that was given back: no process ever has this name."""


class TurnClaim(Struct, frozen=True):
    """The right to commit one turn. `ref` is the session it belongs to, whatever happens to the key meanwhile."""

    turn_id: str
    ref: SessionRef
    holder: str
    fence: int
    message: InboxRow
    tools: tuple[ToolRow, ...] = ()
    """What was started or done before a crash; empty for a turn that begins."""
    steered: tuple[InboxRow, ...] = ()
    """The messages it was steered by before a crash."""

    @property
    def texts(self) -> tuple[str, ...]:
        """What the user has said in this turn so far."""
        return (self.message.inbound.text, *(row.inbound.text for row in self.steered))


class Committed(Struct, frozen=True):
    ref: SessionRef
    number: int
    status: TurnStatus
    reply: Reply | None
    reviews_due: bool = False
    """Some session's turns wait to be reviewed by now, these or others."""


def begin(uow: UnitOfWork, key: SessionKey, turn_id: str, setting: WriteContext) -> TurnClaim | None:
    """Take up the key's next message, opening a session if the key is on none.

    `None` if no message waits, or a command before it: that may lead to another session. Nor is one taken up whose
    files were not fetched yet.
    """
    row = uow.inbox.next(key)
    if row is None or row.inbound.command or row.inbound.is_packed:
        return None
    if len(row.inbound.text) > JOTTED_CHARS_MAX:
        uow.takes_long()
    session, epoch = _admit(uow, key, row, setting)
    if uow.slots.live(session.id) is not None:
        raise Busy(f"a turn is running in session {session.id}; wait for it or stop it")
    ref = ref_to(session, key, epoch)
    slot = Slot(turn_id, ref, setting.holder, 1, Fate.LIVE, row.id, setting.now)
    uow.slots.add(slot)
    uow.inbox.take_up(row.id, session.id, turn_id)
    uow.sessions.save(session.but(active_at=max(session.active_at, row.accepted_at)))
    uow.sessions.serve(setting.holder, session.id, key)
    uow.leases.keep_alive(setting.holder, setting.now, PROCESS_TTL_S)
    return TurnClaim(turn_id, ref, setting.holder, slot.fence, row)


def _admit(uow: UnitOfWork, key: SessionKey, row: InboxRow, setting: WriteContext) -> tuple[Session, int]:
    """The session a message goes to, by when it was accepted."""
    policy = setting.policies.of(key)
    binding, session = uow.sessions.at(key)
    if session is not None and policy.expired(session.active_at, row.accepted_at):
        # Whoever comes next: it is over for the one whose session it was.
        cross(uow, key, Expire(policy, row.accepted_at), session.owner, replace(setting, actor="expiry"))
        binding, session = uow.sessions.at(key)
    if session is None or session.owner != row.inbound.owner:
        opening = replace(setting, before_inbox=row.id, actor="message")
        cross(uow, key, New(), row.inbound.owner, opening)
        binding, session = uow.sessions.at(key)
    assert session is not None
    assert binding is not None
    return session, binding.epoch


def keep_to(uow: UnitOfWork, row: InboxRow, session_id: str, setting: WriteContext) -> None:
    """What was just accepted is for that session alone, where its conversation goes on.

    Raises `KeyMoved` if the key is elsewhere, or a command that waits there may still lead it elsewhere.
    """
    key = row.inbound.key
    _, session = uow.sessions.at(key)
    tip = uow.sessions.tip(session_id)
    if session is None or tip is None or (session.id, session.owner) != (tip.id, row.inbound.owner):
        raise KeyMoved(f"{key} has left session {session_id} meanwhile; send it again")
    if any(other.state is InboxState.WAITING and other.id != row.id for other in uow.inbox.commands(key)):
        raise KeyMoved(f"a command waits at {key}, which may lead to another session; send it again")
    if setting.policies.of(key).expired(session.active_at, row.accepted_at):
        # Whoever names a session goes on with it, as with a resume.
        uow.sessions.save(session.but(active_at=row.accepted_at))


def held(uow: UnitOfWork, ticket: TurnClaim) -> Slot:
    """The ticket's slot, or `Fenced` if somebody else has taken the turn over or it was dropped."""
    slot = uow.slots.get(ticket.turn_id)
    if slot is None or (slot.holder, slot.fence) != (ticket.holder, ticket.fence):
        raise Fenced(f"turn {ticket.turn_id} is no longer this process's to write")
    return slot


def commit(
    uow: UnitOfWork,
    ticket: TurnClaim,
    messages: Sequence[Message],
    reply: str | None,
    setting: WriteContext,
    *,
    interrupted: bool = False,
    spent: Sequence[Spent] = (),
) -> Committed:
    """Messages, log entry, reply, inbox row and slot: all at once, into the session where the turn began."""
    slot = held(uow, ticket)
    session = uow.sessions.get(slot.ref.session_id)
    assert session is not None
    status = _status(slot.fate, interrupted)
    number = session.last_turn + 1
    uow.turns.add(session, number, slot.turn_id, status, messages, setting.now)
    active_at = max(session.active_at, setting.now) if slot.fate is Fate.LIVE else session.active_at
    session = session.but(last_turn=number, active_at=active_at)
    if status.remembered:
        session = append(uow, session, slot.ref, EntryKind.TURN, setting.now, number=number)
    uow.inbox.end_turn(slot.ref.key, slot.turn_id, InboxState.DONE)
    for paid in spent:
        uow.spend.settle(paid, slot.ref, slot.turn_id, setting.now)
    uow.slots.drop(slot.turn_id)
    uow.slots.drop_tools(slot.turn_id)
    sent = _put_reply(uow, slot, reply, setting.now)
    if slot.fate is Fate.LIVE:
        arm_expiry(uow, slot.ref.key, session, setting.policies)
    else:
        session = close_if_left(uow, session, slot.ref, setting.now)
    uow.sessions.save(session)
    if slot.fate is Fate.LIVE:
        note_full(uow, session, setting.review_every, setting.now)
    elif slot.fate is Fate.LATE:
        note_rest(uow, session, setting.review_every, setting.now)
    if "on_turn_end" in setting.hooks:
        call = HookCall("on_turn_end", session.id, slot.ref.key.platform, {"number": str(number)})
        uow.leases.add_hook(slot.ref.key, call, setting.now)
    reviews_due = setting.review_every > 0 and uow.reviews.is_due(setting.now)
    return Committed(slot.ref, number, status, sent, reviews_due)


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
    # A reply to a conversation that its reader has left must not turn up in the one they are in now.
    state = ReplyState.READY if slot.fate is Fate.LIVE else ReplyState.WITHHELD
    reply = Reply(slot.turn_id, slot.ref.key, slot.ref.session_id, slot.ref.owner, text, state, now)
    return uow.outbox.put_reply(reply)


def take_over(uow: UnitOfWork, turn_id: str, setting: WriteContext) -> TurnClaim | None:
    """Go on with a turn whose process is gone. `None` if another process was faster."""
    if turn_id not in {slot.turn_id for slot in uow.slots.orphans(setting.now)}:
        return None
    slot = uow.slots.take_over(turn_id, setting.holder)
    uow.sessions.serve(setting.holder, slot.ref.session_id, slot.ref.key)
    uow.leases.keep_alive(setting.holder, setting.now, PROCESS_TTL_S)
    return _ticket(uow, slot)


def _ticket(uow: UnitOfWork, slot: Slot) -> TurnClaim:
    """The right to go on with a turn that was begun before."""
    row, *steered = uow.inbox.of_turn(slot.ref.key, slot.turn_id)
    return TurnClaim(
        slot.turn_id, slot.ref, slot.holder, slot.fence, row, uow.slots.tools(slot.turn_id), tuple(steered)
    )


def steer(uow: UnitOfWork, ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
    """Make a waiting message part of the running turn. `None` if it waits no longer."""
    slot = held(uow, ticket)
    row = uow.inbox.get(inbox_id)
    if row is None or row.state is not InboxState.WAITING or row.inbound.key != slot.ref.key:
        return None
    if slot.fate is not Fate.LIVE or row.inbound.owner != slot.ref.owner:
        return None
    if row.inbound.is_packed:
        return None
    before = uow.inbox.next(row.inbound.key)
    if before is not None and (before.inbound.command or before.inbound.is_packed) and before.id < row.id:
        # A command may lead to another session, and what was said after it belongs there; and nothing overtakes what
        # is still being fetched.
        return None
    uow.inbox.take_up(row.id, slot.ref.session_id, slot.turn_id)
    return row


def settle_orphans(uow: UnitOfWork, setting: WriteContext) -> tuple[str, ...]:
    """Record what cancelled turns of dead processes had, and name the turns that must be run again.

    Delegated work is not named: the turn that waits for it goes on with it.
    """
    uow.leases.sweep(setting.now - REMEMBERED_S)
    unsettled = [slot for slot in uow.slots.orphans(setting.now) if not _settled(uow, slot, setting)]
    _set_unbegun_work_aside(uow, setting)
    return tuple(slot.turn_id for slot in unsettled if _delegating(uow, slot) is None)


def _set_unbegun_work_aside(uow: UnitOfWork, setting: WriteContext) -> None:
    """Work that was handed over by a turn that is over, and that nobody has begun, never will be."""
    for key in uow.inbox.keys_waiting():
        if key.platform != HANDED_OVER:
            continue
        _, session = uow.sessions.at(key)
        handed_over = session is not None and session.cause is Cause.DELEGATION and session.key == key
        if session is not None and handed_over and not uow.slots.of_session(session.parent_id or ""):
            cross(uow, key, Suspend(close_memory=True), session.owner, setting)


def abandon(uow: UnitOfWork, ticket: TurnClaim, setting: WriteContext) -> None:
    """Give a begun turn back, with its tools and its draft: from here on it is as if its process were gone."""
    if not _settled(uow, held(uow, ticket), setting):
        uow.slots.take_over(ticket.turn_id, NOBODY)


def _settled(uow: UnitOfWork, slot: Slot, setting: WriteContext) -> bool:
    """Store a cancelled turn with what there was of it; false for one that must be run again."""
    if slot.fate is Fate.LIVE and not _is_unwanted(uow, slot):
        return False
    ticket = _ticket(uow, slot)
    commit(uow, ticket, [Message(Role.USER, text) for text in ticket.texts], None, setting, interrupted=True)
    draft = uow.outbox.reply(slot.turn_id)
    if draft is not None and draft.state is ReplyState.DRAFT:
        # Nobody will finish it.
        uow.outbox.put_reply(replace(draft, state=ReplyState.WITHHELD))
    return True


def _is_unwanted(uow: UnitOfWork, slot: Slot) -> bool:
    """Whether it is delegated work that no turn waits for any more."""
    parent_id = _delegating(uow, slot)
    return parent_id is not None and not uow.slots.of_session(parent_id)


def _delegating(uow: UnitOfWork, slot: Slot) -> str | None:
    """The session that handed a turn's work over; none for a person who has come to look at it."""
    session = uow.sessions.get(slot.ref.session_id)
    handed_over = session is not None and session.cause is Cause.DELEGATION and session.key == slot.ref.key
    return session.parent_id if session is not None and handed_over else None


_CHARS_OF_A_ROW = 300
"""A row costs about as much as that many characters in it."""


class TurnUnits(Units):
    """A turn, what runs in it, and what became of it."""

    async def accept(self, inbound: Inbound, *, only_into: str = "") -> tuple[InboxRow, bool]:
        """Take a message in for good; false if the platform had delivered it before.

        One that is `only_into` a session is answered there or set aside there. Raises `KeyMoved` if that can't be.
        """
        chars = check_size("a message", inbound.text)
        check_key(inbound.key)
        check_owner(inbound.owner)
        if inbound.update_id == "":
            # A platform that numbers nothing says "" as well as nothing.
            inbound = replace(inbound, update_id=None)

        def take(uow: UnitOfWork) -> tuple[InboxRow, bool]:
            row, new = uow.inbox.accept(inbound, self._clock.now())
            if new and only_into:
                keep_to(uow, row, only_into, self._setting("message"))
            return row, new

        return await self._jot_if_short(take, chars)

    async def answer_order(self, row: InboxRow, text: str | None) -> Reply | None:
        """A command was carried out: this is what is said to it, if whoever gave it is told by way of the outbox."""

        def answer(uow: UnitOfWork) -> Reply | None:
            uow.inbox.end_command(row.id)
            if text is None:
                return None
            inbound, now = row.inbound, self._clock.now()
            here = uow.sessions.ref(inbound.key)
            session_id = here.session_id if here is not None and here.owner == inbound.owner else ""
            return uow.outbox.put_reply(
                Reply(order_turn(row.id), inbound.key, session_id, inbound.owner, text, ReplyState.READY, now)
            )

        return await self._store.write(answer)

    async def ask_again(self, key: SessionKey, *, owner: str, order: int | None = None, user: str = "") -> AskedAgain:
        """Take back the key's running or last turn, and let its words wait to be answered once more, as the user's."""
        check_key(key)
        check_owner(owner)
        return await self._store.write(lambda uow: ask_again(uow, key, owner, self._setting("user", order), user))

    async def begin_turn(self, key: SessionKey) -> TurnClaim | None:
        """Take up the key's next message, if one waits. Raises `Busy` while a turn runs in its session."""
        check_key(key)
        return await self._store.write_inline(lambda uow: begin(uow, key, self._new_id(), self._setting("message")))

    async def begin_scheduled(
        self, schedule_id: str, due_at: float, profile: str
    ) -> tuple[SessionKey, InboxRow] | None:
        """Have what is asked at that time of a task wait in a session of its own; where, and what is known of it.

        `None` if it is over, or another time of the task is being done.
        """
        from everthread.lifecycle.schedules import begin  # noqa: PLC0415 - it is rarely wanted

        return await self._store.write(lambda uow: begin(uow, schedule_id, due_at, profile, self._setting("schedule")))

    async def steer(self, ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
        """Let a running turn take up a message that waits behind it. `None` if it waits no longer."""
        return await self._store.write(lambda uow: steer(uow, ticket, inbox_id))

    async def start_tool(
        self, ticket: TurnClaim, call_id: str, name: str, arguments: str, thought: Thought | None = None
    ) -> None:
        """To be called before a tool runs: after a crash its outcome is then known to be unknown."""
        chars = check_size("a tool call", call_id, name, arguments, thought.content if thought else "")
        row = ToolRow(ticket.turn_id, call_id, name, arguments, ToolState.STARTED, thought=thought)

        def start(uow: UnitOfWork) -> None:
            held(uow, ticket)
            uow.slots.start_tool(row, ticket.ref.owner)

        await self._jot_if_short(start, chars)

    async def finish_tool(self, ticket: TurnClaim, call_id: str, result: str) -> None:
        chars = check_size("a tool's result", result)

        def finish(uow: UnitOfWork) -> None:
            held(uow, ticket)
            uow.slots.finish_tool(ticket.turn_id, call_id, result)

        await self._jot_if_short(finish, chars)

    async def drafted(self, turn_id: str) -> Reply | None:
        """What is noted so far of a turn's reply."""
        return await self._store.read_inline(lambda uow: uow.outbox.reply(turn_id))

    async def draft_reply(
        self, ticket: TurnClaim, text: str, platform_message_id: str | None = None, sent_after: str = ""
    ) -> Reply:
        """Note what was streamed so far, and under which id, so that recovery edits it instead of repeating it. While
        the id is not known, `sent_after` says from where on to look for it.

        Of a turn that is over by now, or was given back, only the id is noted: whoever sends its reply must know it.
        """

        def draft(uow: UnitOfWork) -> Reply:
            reply = uow.outbox.reply(ticket.turn_id)
            unsent = reply is not None and reply.state in (ReplyState.DRAFT, ReplyState.READY) and not reply.parts
            if platform_message_id and reply is not None and unsent and not reply.platform_message_id:
                return uow.outbox.put_reply(replace(reply, platform_message_id=platform_message_id))
            ref = held(uow, ticket).ref
            state, now = ReplyState.DRAFT, self._clock.now()
            message_id, after = platform_message_id, sent_after
            if reply is not None and reply.platform_message_id == "":
                # An earlier beginning may be out.
                after = reply.sent_after
            return uow.outbox.put_reply(
                Reply(
                    *(ticket.turn_id, ref.key, ref.session_id, ref.owner, text, state, now, message_id),
                    sent_after=after,
                )
            )

        return await self._store.write(draft)

    async def commit_turn(
        self,
        ticket: TurnClaim,
        messages: Sequence[Message],
        reply: str | None,
        *,
        interrupted: bool = False,
        spent: Sequence[Spent] = (),
    ) -> Committed:
        """Store a turn whole, and what it has cost. Raises `Fenced` if it is no longer this ticket's to write."""
        texts = [part for message in messages for part in message.texts()]
        chars = check_size("a turn", reply or "", *texts, chars_max=TURN_CHARS_MAX)
        committed = await self._jot_if_short(
            lambda uow: commit(
                uow, ticket, messages, reply, self._setting("turn"), interrupted=interrupted, spent=spent
            ),
            chars + len(messages) * _CHARS_OF_A_ROW,
        )
        log_turn(committed, ticket.turn_id)
        return committed

    async def recover(self) -> tuple[str, ...]:
        """Settle what dead processes left behind; the turns to `resume_turn`."""
        return await self._store.write(lambda uow: settle_orphans(uow, self._setting("recovery")))

    async def resume_turn(self, turn_id: str) -> TurnClaim | None:
        """Go on with a turn that `recover` named. `None` if another process was faster."""
        return await self._store.write(lambda uow: take_over(uow, turn_id, self._setting("recovery")))

    async def abandon_turn(self, ticket: TurnClaim) -> None:
        """Give a turn back that can't be gone on with, say because of an error: `recover` names it, for any process.

        It may fail again: `ticket.fence` grows each time. To give it up, commit it with `interrupted=True`.
        """
        await self._store.write(lambda uow: abandon(uow, ticket, self._setting("recovery")))

    async def put_prefix(self, ref: SessionRef, content: bytes) -> Prefix:
        """Store the session's next prefix; its number tells it from the last one's."""

        def put(uow: UnitOfWork) -> Prefix:
            session = owned(uow, ref.session_id, ref.owner)
            prefix = Prefix(session.id, uow.turns.prefix_number(session.id) + 1, content, self._clock.now())
            uow.turns.put_prefix(prefix, session.owner)
            return prefix

        return await self._store.write(put)

    async def record_delegation(self, ref: SessionRef, task: str, result: str, child_session_id: str) -> None:
        """Tell the parent session's providers what delegated work came to: once, however often it is called."""
        check_size("delegated work", task, result)
        detail: dict[str, object] = {"task": task, "result": result, "child": child_session_id}

        def record(uow: UnitOfWork) -> None:
            now = self._clock.now()
            session = owned(uow, ref.session_id, ref.owner)
            told = uow.log.of_kind(session.id, EntryKind.DELEGATION)
            if any(entry.detail and entry.detail.get("child") == child_session_id for entry in told):
                return
            session = append(uow, session, ref, EntryKind.DELEGATION, now, detail=detail)
            uow.sessions.save(close_if_left(uow, session, ref, now))

        await self._store.write(record)


class AskedAgain(Struct, frozen=True):
    """What was taken back, and the message that waits now. There is none if the crossing was refused."""

    crossing: Crossing
    row: InboxRow | None = None


def ask_again(uow: UnitOfWork, key: SessionKey, owner: str, setting: WriteContext, user: str = "") -> AskedAgain:
    """Take back the running turn, or else the last one, and let what was said in it wait to be answered.

    A branch may ask again what was said before it: its parent keeps that turn.
    """
    ref = uow.sessions.ref(key)
    session = uow.sessions.get(ref.session_id) if ref else None
    running = uow.slots.live(session.id) if session and session.owner == owner else None
    if running is not None and running.ref.key != key:
        raise Busy("the answer is being written for somebody else in this conversation; wait for it")
    text = _last_words(uow, session) if session else ""
    # Checked here that the session is the owner's.
    crossing = cross(uow, key, Rewind(1), owner, setting)
    if crossing.refusal is not None:
        return AskedAgain(crossing)
    if not text.strip() or text.strip() == FORGOTTEN:
        raise BadInput("what was said last was forgotten and can't be asked again; say it in new words")
    row, _ = uow.inbox.accept(Inbound(key, owner, text, user=user), setting.now)
    return AskedAgain(crossing, row)


def _last_words(uow: UnitOfWork, session: Session) -> str:
    running = uow.slots.live(session.id)
    if running is not None:
        return "\n".join(row.inbound.text for row in uow.inbox.of_turn(running.ref.key, running.turn_id))
    for number in uow.turns.last_visible(session, 1):
        return "\n".join(turn.user_text for turn in uow.turns.view(session, after=number - 1, up_to=number).turns)
    return ""


def log_turn(committed: Committed, turn_id: str) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    ids = {"session": committed.ref.session_id, "turn": committed.number, "turn_id": turn_id}
    log_info(log, "turn committed", {**ids, "status": committed.status.value, **log_fields(committed.ref.key)})
