"""Turns, from the message that comes in to the reply that goes out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everthread.domain.events import EntryKind
from everthread.domain.model import (
    Inbound,
    InboxRow,
    Message,
    Prefix,
    Reply,
    ReplyState,
    SessionKey,
    SessionRef,
    Thought,
    ToolRow,
    ToolState,
)
from everthread.domain.spend import Spent
from everthread.lifecycle import crossing, turn
from everthread.lifecycle.again import AskedAgain, ask_again
from everthread.lifecycle.checks import TURN_CHARS_MAX, check_key, check_owner, check_size
from everthread.lifecycle.log import append, close_if_left
from everthread.lifecycle.logged import log_turn
from everthread.lifecycle.turn import Committed, Ticket
from everthread.lifecycle.units import Units
from everthread.ports.store import UnitOfWork

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
                turn.keep_to(uow, row, only_into, self._setting("message"))
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
            return uow.inbox.put_reply(
                Reply(crossing.order_turn(row.id), inbound.key, session_id, inbound.owner, text, ReplyState.READY, now)
            )

        return await self._store.write(answer)

    async def ask_again(self, key: SessionKey, *, owner: str, order: int | None = None, user: str = "") -> AskedAgain:
        """Take back the key's running or last turn, and let its words wait to be answered once more, as the user's."""
        check_key(key)
        check_owner(owner)
        return await self._store.write(lambda uow: ask_again(uow, key, owner, self._setting("user", order), user))

    async def begin_turn(self, key: SessionKey) -> Ticket | None:
        """Take up the key's next message, if one waits. Raises `Busy` while a turn runs in its session."""
        check_key(key)
        return await self._store.jot(lambda uow: turn.begin(uow, key, self._new_id(), self._setting("message")))

    async def begin_scheduled(
        self, schedule_id: str, due_at: float, profile: str
    ) -> tuple[SessionKey, InboxRow] | None:
        """Have what is asked at that time of a task wait in a session of its own; where, and what is known of it.

        `None` if it is over, or another time of the task is being done.
        """
        from everthread.lifecycle.scheduling import begin  # noqa: PLC0415 - it is rarely wanted

        return await self._store.write(lambda uow: begin(uow, schedule_id, due_at, profile, self._setting("schedule")))

    async def steer(self, ticket: Ticket, inbox_id: int) -> InboxRow | None:
        """Let a running turn take up a message that waits behind it. `None` if it waits no longer."""
        return await self._store.write(lambda uow: turn.steer(uow, ticket, inbox_id))

    async def start_tool(
        self, ticket: Ticket, call_id: str, name: str, arguments: str, thought: Thought | None = None
    ) -> None:
        """To be called before a tool runs: after a crash its outcome is then known to be unknown."""
        chars = check_size("a tool call", call_id, name, arguments, thought.content if thought else "")
        row = ToolRow(ticket.turn_id, call_id, name, arguments, ToolState.STARTED, thought=thought)

        def start(uow: UnitOfWork) -> None:
            turn.held(uow, ticket)
            uow.slots.start_tool(row, ticket.ref.owner)

        await self._jot_if_short(start, chars)

    async def finish_tool(self, ticket: Ticket, call_id: str, result: str) -> None:
        chars = check_size("a tool's result", result)

        def finish(uow: UnitOfWork) -> None:
            turn.held(uow, ticket)
            uow.slots.finish_tool(ticket.turn_id, call_id, result)

        await self._jot_if_short(finish, chars)

    async def drafted(self, turn_id: str) -> Reply | None:
        """What is noted so far of a turn's reply."""
        return await self._store.peek(lambda uow: uow.inbox.reply(turn_id))

    async def draft_reply(
        self, ticket: Ticket, text: str, platform_message_id: str | None = None, sent_after: str = ""
    ) -> Reply:
        """Note what was streamed so far, and under which id, so that recovery edits it instead of repeating it. While
        the id is not known, `sent_after` says from where on to look for it.

        Of a turn that is over by now, or was given back, only the id is noted: whoever sends its reply must know it.
        """

        def draft(uow: UnitOfWork) -> Reply:
            reply = uow.inbox.reply(ticket.turn_id)
            unsent = reply is not None and reply.state in (ReplyState.DRAFT, ReplyState.READY) and not reply.parts
            if platform_message_id and reply is not None and unsent and not reply.platform_message_id:
                return uow.inbox.put_reply(replace(reply, platform_message_id=platform_message_id))
            ref = turn.held(uow, ticket).ref
            state, now = ReplyState.DRAFT, self._clock.now()
            message_id, after = platform_message_id, sent_after
            if reply is not None and reply.platform_message_id == "":
                # An earlier beginning may be out.
                after = reply.sent_after
            return uow.inbox.put_reply(
                Reply(
                    *(ticket.turn_id, ref.key, ref.session_id, ref.owner, text, state, now, message_id),
                    sent_after=after,
                )
            )

        return await self._store.write(draft)

    async def commit_turn(
        self,
        ticket: Ticket,
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
            lambda uow: turn.commit(
                uow, ticket, messages, reply, self._setting("turn"), interrupted=interrupted, spent=spent
            ),
            chars + len(messages) * _CHARS_OF_A_ROW,
        )
        log_turn(committed, ticket.turn_id)
        return committed

    async def recover(self) -> tuple[str, ...]:
        """Settle what dead processes left behind; the turns to `resume_turn`."""
        return await self._store.write(lambda uow: turn.settle_orphans(uow, self._setting("recovery")))

    async def resume_turn(self, turn_id: str) -> Ticket | None:
        """Go on with a turn that `recover` named. `None` if another process was faster."""
        return await self._store.write(lambda uow: turn.take_over(uow, turn_id, self._setting("recovery")))

    async def abandon_turn(self, ticket: Ticket) -> None:
        """Give a turn back that can't be gone on with, say because of an error: `recover` names it, for any process.

        It may fail again: `ticket.fence` grows each time. To give it up, commit it with `interrupted=True`.
        """
        await self._store.write(lambda uow: turn.abandon(uow, ticket, self._setting("recovery")))

    async def put_prefix(self, ref: SessionRef, content: bytes) -> Prefix:
        """Store the session's next prefix; its number tells it from the last one's."""

        def put(uow: UnitOfWork) -> Prefix:
            session = crossing.owned(uow, ref.session_id, ref.owner)
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
            session = crossing.owned(uow, ref.session_id, ref.owner)
            told = uow.log.of_kind(session.id, EntryKind.DELEGATION)
            if any(entry.detail and entry.detail.get("child") == child_session_id for entry in told):
                return
            session = append(uow, session, ref, EntryKind.DELEGATION, now, detail=detail)
            uow.sessions.save(close_if_left(uow, session, ref, now))

        await self._store.write(record)
