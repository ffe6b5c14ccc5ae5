"""The one door. Every boundary, every committed turn and every log entry is written from this package.

`Lifecycle` is its face: each method is one unit of work. The modules beside it are plain functions on a unit of work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everthread.domain import titles
from everthread.domain.boundary import Boundary, Expire, Forget, Resume, Suspend
from everthread.domain.errors import BadInput, BadKey, BudgetSpent, TitleTaken, TooLarge
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    OWNER_CHARS_MAX,
    SCHEDULED,
    Inbound,
    InboxRow,
    Lease,
    Message,
    NoteVersion,
    Prefix,
    Reply,
    ReplyState,
    Session,
    SessionKey,
    SessionRef,
    Thought,
    ToolRow,
    ToolState,
    whole,
)
from everthread.domain.policy import ResetPolicies, ResetPolicy
from everthread.domain.review import Review
from everthread.domain.spend import Spent
from everthread.lifecycle import crossing, turn
from everthread.lifecycle.again import AskedAgain, ask_again
from everthread.lifecycle.crossing import Crossing, Setting
from everthread.lifecycle.forget import ForgetFact, ForgetOwner, ForgetSession, Forgettable, forget
from everthread.lifecycle.log import append, close_if_left
from everthread.lifecycle.notes import NoteChange, Rewriting, rewrite_notes, undo_note, write_note
from everthread.lifecycle.reviewing import held, take_review
from everthread.lifecycle.turn import Committed, Ticket
from everthread.lifecycle.usage import DAY_S, Usage, usage
from everthread.ports import Clock, Store
from everthread.ports.store import Incident, UnitOfWork

if TYPE_CHECKING:
    from everthread.domain.exchange import NoteLine, SessionLine
    from everthread.lifecycle.importing import Imported
    from everthread.lifecycle.taking_in import Items

log = logging.getLogger("everthread.lifecycle")

TEXT_CHARS_MAX = 10_000_000
TURN_CHARS_MAX = 10 * TEXT_CHARS_MAX
"""A message that was accepted must be answerable: with its tools and its answer, a turn is larger."""
RECHECK_S = 30.0
KEYS_KNOWN = 4096
_TIMERS_AT_ONCE = 64

__all__ = [
    "Committed",
    "Crossing",
    "ForgetFact",
    "ForgetOwner",
    "ForgetSession",
    "Lifecycle",
    "NoteChange",
    "Ticket",
    "Rewriting",
]


class Lifecycle:
    """Serves every key from any process: it keeps nothing about them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        new_id: Callable[[], str],
        *,
        holder: str,
        policies: ResetPolicies | None = None,
        hooks: frozenset[str] = frozenset(),
        review_every: int = 0,
        told_of_expiry: frozenset[str] = frozenset(),
        remove_file: Callable[[str], None] | None = None,
    ) -> None:
        """After `review_every` turns of a chat, and when it is closed, they are noted to be reviewed; 0 is never.

        On the platforms `told_of_expiry` people are told when a conversation has ended by itself. `remove_file` removes
        one that came with a message, by its path in their folder; it may be gone already.
        """
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._holder = holder
        self._policies = policies or ResetPolicies(ResetPolicy())
        self._hooks = hooks
        self._review_every = review_every
        self._told_of_expiry = told_of_expiry
        self._remove_file = remove_file

    async def accept(self, inbound: Inbound, *, only_into: str = "") -> tuple[InboxRow, bool]:
        """Take a message in for good; false if the platform had delivered it before.

        One that is `only_into` a session is answered there or set aside there. Raises `KeyMoved` if that can't be.
        """
        _check_size("a message", inbound.text)
        _check_key(inbound.key)
        _check_owner(inbound.owner)
        if inbound.update_id == "":
            # A platform that numbers nothing says "" as well as nothing.
            inbound = replace(inbound, update_id=None)

        def take(uow: UnitOfWork) -> tuple[InboxRow, bool]:
            row, new = uow.inbox.accept(inbound, self._clock.now())
            if new and only_into:
                turn.keep_to(uow, row, only_into, self._setting("message"))
            return row, new

        return await self._store.write(take)

    async def cross(
        self,
        key: SessionKey,
        boundary: Boundary,
        *,
        owner: str,
        actor: str = "user",
        order: int | None = None,
    ) -> Crossing:
        """Carry out a boundary of a key, in one transaction.

        `order` is the command in the inbox that asks for it: what came in before it is set aside by a boundary that
        leaves the session, what came after it is not. Raises `DoneBefore` if the command was carried out already.
        """
        if isinstance(boundary, Forget):
            raise TypeError("a session is forgotten with `forget`, which takes its words as well")
        if not isinstance(boundary, Boundary):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{boundary!r} is no boundary")
        if not isinstance(key, SessionKey):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise TypeError(f"{key!r} is no session key")
        _check_key(key)
        _check_owner(owner)
        crossed = await self._store.write(
            lambda uow: crossing.cross(uow, key, boundary, owner, self._setting(actor, order))
        )
        _log_crossing(crossed)
        return crossed

    async def ask_again(self, key: SessionKey, *, owner: str, order: int | None = None, user: str = "") -> AskedAgain:
        """Take back the key's running or last turn, and let its words wait to be answered once more, as the user's."""
        _check_key(key)
        _check_owner(owner)
        return await self._store.write(lambda uow: ask_again(uow, key, owner, self._setting("user", order), user))

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

    async def current(self, key: SessionKey) -> SessionRef | None:
        """Where a key is now."""
        return await self._store.peek(lambda uow: uow.sessions.ref(key))

    async def begin_turn(self, key: SessionKey) -> Ticket | None:
        """Take up the key's next message, if one waits. Raises `Busy` while a turn runs in its session."""
        _check_key(key)
        return await self._store.write(lambda uow: turn.begin(uow, key, self._new_id(), self._setting("message")))

    async def begin_scheduled(
        self, schedule_id: str, due_at: float, profile: str
    ) -> tuple[SessionKey, InboxRow] | None:
        """Have what is asked at that time of a task wait in a session of its own; where, and what is known of it.

        `None` if it is over, or another time of the task is being done.
        """
        from everthread.lifecycle.scheduling import begin  # noqa: PLC0415 - it is rarely wanted

        return await self._store.write(lambda uow: begin(uow, schedule_id, due_at, profile, self._setting("schedule")))

    async def start_tool(
        self, ticket: Ticket, call_id: str, name: str, arguments: str, thought: Thought | None = None
    ) -> None:
        """To be called before a tool runs: after a crash its outcome is then known to be unknown."""
        _check_size("a tool call", call_id, name, arguments, thought.content if thought else "")
        row = ToolRow(ticket.turn_id, call_id, name, arguments, ToolState.STARTED, thought=thought)

        def start(uow: UnitOfWork) -> None:
            turn.held(uow, ticket)
            uow.slots.start_tool(row, ticket.ref.owner)

        await self._store.write(start)

    async def finish_tool(self, ticket: Ticket, call_id: str, result: str) -> None:
        _check_size("a tool's result", result)

        def finish(uow: UnitOfWork) -> None:
            turn.held(uow, ticket)
            uow.slots.finish_tool(ticket.turn_id, call_id, result)

        await self._store.write(finish)

    async def draft_reply(self, ticket: Ticket, text: str, platform_message_id: str | None = None) -> Reply:
        """Note what was streamed so far, and under which id, so that recovery edits it instead of repeating it.

        Of a turn that is over by now, or was given back, only the id is noted: whoever sends its reply must know it.
        """

        def draft(uow: UnitOfWork) -> Reply:
            reply = uow.inbox.reply(ticket.turn_id)
            unsent = reply is not None and reply.state in (ReplyState.DRAFT, ReplyState.READY) and not reply.parts
            if platform_message_id and reply is not None and unsent and not reply.platform_message_id:
                return uow.inbox.put_reply(replace(reply, platform_message_id=platform_message_id))
            ref = turn.held(uow, ticket).ref
            state, now = ReplyState.DRAFT, self._clock.now()
            return uow.inbox.put_reply(
                Reply(ticket.turn_id, ref.key, ref.session_id, ref.owner, text, state, now, platform_message_id)
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
        texts = (part for message in messages for part in message.texts())
        _check_size("a turn", reply or "", *texts, chars_max=TURN_CHARS_MAX)
        committed = await self._store.write(
            lambda uow: turn.commit(
                uow, ticket, messages, reply, self._setting("turn"), interrupted=interrupted, spent=spent
            )
        )
        ids = {"session": committed.ref.session_id, "turn": committed.number, "turn_id": ticket.turn_id}
        _log("turn committed", {**ids, "status": committed.status.value, **_where(committed.ref.key)})
        return committed

    async def steer(self, ticket: Ticket, inbox_id: int) -> InboxRow | None:
        """Let a running turn take up a message that waits behind it. `None` if it waits no longer."""
        return await self._store.write(lambda uow: turn.steer(uow, ticket, inbox_id))

    async def reserve_spend(
        self,
        ref: SessionRef,
        turn_id: str,
        model: str,
        amount: float,
        *,
        limit_per_day: float | None,
        limit_of_session: float | None = None,
        limit_of_turn: float | None = None,
        spent: Sequence[Spent] = (),
    ) -> int:
        """Set money aside for a call, and settle the turn's calls before it. Raises `BudgetSpent` beyond a limit."""

        def reserve(uow: UnitOfWork) -> int | str:
            now = self._clock.now()
            for paid in spent:
                uow.spend.settle(paid, ref, turn_id, now)
            if limit_per_day is not None and uow.spend.total(ref.owner, now - DAY_S) + amount > limit_per_day:
                return (
                    f"the limit of ${limit_per_day:g} in 24 hours would be passed; wait, or have spend_per_day raised"
                )
            if limit_of_session is not None and _spent_in(uow, ref) + amount > limit_of_session:
                return (
                    f"the limit of ${limit_of_session:g} for this piece of work would be passed; hand over less at once"
                )
            if limit_of_turn is not None and uow.spend.of_turn(ref, turn_id, now - DAY_S) + amount > limit_of_turn:
                return _passed(ref, limit_of_turn)
            return uow.spend.reserve(ref, turn_id, model, amount, now)

        reserved = await self._store.write(reserve)
        if isinstance(reserved, str):
            raise BudgetSpent(reserved)
        return reserved

    async def settle_spend(self, ref: SessionRef, turn_id: str, spent: Sequence[Spent]) -> None:
        """Write down what calls have cost that no turn's commit will."""

        def settle(uow: UnitOfWork) -> None:
            for paid in spent:
                uow.spend.settle(paid, ref, turn_id, self._clock.now())

        await self._store.write(settle)

    async def usage(self, owner: str, session: Session | None = None) -> Usage:
        """What the owner's model calls came to, and those of one of their sessions."""
        return await self._store.read(lambda uow: usage(uow, owner, session, self._clock.now()))

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

    async def write_note(
        self, change: NoteChange, *, owner: str, ref: SessionRef | None = None, review: Review | None = None
    ) -> NoteVersion:
        """Carry the change out. Raises `Fenced` for one of a `review` that is not to be carried out any more."""
        _check_owner(owner)

        def write(uow: UnitOfWork) -> NoteVersion:
            if review is not None:
                held(uow, review, owner)
            return write_note(uow, change, owner=owner, ref=ref, new_id=self._new_id(), now=self._clock.now())

        return await self._store.write(write)

    async def rewrite_notes(
        self, rewriting: Rewriting, *, owner: str, ref: SessionRef, review: Review
    ) -> tuple[NoteVersion, ...]:
        """Put what a review has condensed in the place of a whole collection, all at once or not at all.

        Raises `NotCondensed` if the notes were changed meanwhile, `Fenced` as `write_note` does.
        """
        _check_owner(owner)

        def write(uow: UnitOfWork) -> tuple[NoteVersion, ...]:
            held(uow, review, owner)
            return rewrite_notes(uow, rewriting, owner=owner, ref=ref, now=self._clock.now())

        return await self._store.write(write)

    async def take_review(self) -> tuple[Review, SessionRef] | None:
        """The next review that is due, for this process alone, and the session that it is about."""

        def take(uow: UnitOfWork) -> tuple[Review, SessionRef] | None:
            now = self._clock.now()
            uow.lanes.keep_alive(self._holder, now, turn.PROCESS_TTL_S)
            return take_review(uow, self._holder, now)

        return await self._store.write(take)

    async def undo_note(self, note_id: str, version: int, *, owner: str) -> NoteVersion:
        """Take back a note's last change; raises `BadInput` if the one that is named is not the last any more."""
        return await self._store.write(lambda uow: undo_note(uow, note_id, version, owner=owner, now=self._clock.now()))

    async def record_delegation(self, ref: SessionRef, task: str, result: str, child_session_id: str) -> None:
        """Tell the parent session's providers what delegated work came to: once, however often it is called."""
        _check_size("delegated work", task, result)
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

    async def put_prefix(self, ref: SessionRef, content: bytes) -> Prefix:
        """Store the session's next prefix; its number tells it from the last one's."""

        def put(uow: UnitOfWork) -> Prefix:
            session = crossing.owned(uow, ref.session_id, ref.owner)
            prefix = Prefix(session.id, uow.turns.prefix_number(session.id) + 1, content, self._clock.now())
            uow.turns.put_prefix(prefix, session.owner)
            return prefix

        return await self._store.write(put)

    async def rename(self, session_id: str, title: str, *, owner: str, only_if_none: bool = False) -> str:
        """Give a session a title that no other of its owner has; the title it has then."""
        title = titles.clean(title)

        def rename(uow: UnitOfWork) -> str:
            session = crossing.owned(uow, session_id, owner)
            if only_if_none and session.title:
                return session.title
            taken = {titles.fold(s.title or ""): s.id for s in uow.sessions.titled(owner, title)}
            if taken.get(titles.fold(title), session.id) != session.id:
                free = titles.next_title(title, taken)
                raise TitleTaken(f"another session is already called {title!r}; choose another title, say {free!r}")
            uow.sessions.set_title(session.id, title)
            return title

        return await self._store.write(rename)

    async def hand_over(self, key: SessionKey, session_id: str, text: str, *, owner: str) -> Crossing:
        """Go on with a session at another of the owner's keys, and say so there."""

        def hand_over(uow: UnitOfWork) -> Crossing:
            crossed = crossing.cross(uow, key, Resume(session_id), owner, self._setting("handoff"))
            if crossed.refusal is None and crossed.ref is not None:
                name, at = f"handoff-{self._new_id()}", self._clock.now()
                uow.inbox.put_reply(Reply(name, key, crossed.ref.session_id, owner, text, ReplyState.READY, at))
            return crossed

        crossed = await self._store.write(hand_over)
        _log_crossing(crossed)
        return crossed

    async def choose_model(self, key: SessionKey, model: str, *, owner: str) -> None:
        """Have that model answer at the key from now on; an empty name is the usual one."""
        await self._store.write(lambda uow: uow.sessions.choose_model(key, owner, model))

    async def forget(self, what: Forgettable, *, owner: str, actor: str = "user") -> int:
        """Forget a session, a person or a fact; how many sessions or notes were concerned."""
        count = await self._store.write(lambda uow: forget(uow, what, owner, self._setting(actor)))
        await self._clear_traces()
        return count

    async def _clear_traces(self) -> None:
        """Take what was deleted out of the index and the write-ahead log for good, and its files with it."""
        await self.remove_files()
        # In slices, so that nobody waits while the index is worked over.
        more = await self._store.write(lambda uow: uow.forgetting.purge(begin=True))
        while more:
            more = await self._store.write(lambda uow: uow.forgetting.purge(begin=False))
        if not await self._store.tidy():
            await self._store.write(lambda uow: uow.lanes.add_incident(self._untidy()))

    async def remove_files(self) -> None:
        """Remove the files of what was forgotten, also those that a process which is gone has left."""
        if self._remove_file is None:
            return
        for path in await self._store.read(lambda uow: uow.forgetting.discarded()):
            try:
                await asyncio.to_thread(self._remove_file, path)
            except OSError as error:
                text = f"a file of what was forgotten could not be removed ({error.strerror}); remove media/{path}"
                incident = Incident(self._clock.now(), "forget", None, text)
                await self._store.write(lambda uow, incident=incident: uow.lanes.add_incident(incident))
            else:
                await self._store.write(lambda uow, path=path: uow.forgetting.removed(path))

    def _untidy(self) -> Incident:
        text = "what was forgotten stays in the write-ahead log until nobody reads there; stop the other programs once"
        return Incident(self._clock.now(), "forget", None, text)

    async def import_session(
        self,
        line: SessionLine,
        items: Items,
        *,
        owner: str,
        before: Mapping[str, Imported],
        routed: frozenset[SessionKey] = frozenset(),
        dry_run: bool = False,
    ) -> Imported:
        """Take in what is new of an exported session. `before` says what became of those before it in the file,
        `routed` which keys its source has on it.
        """
        from everthread.lifecycle.taking_in import Arrival, take_in  # noqa: PLC0415 - as with all that is rarely done

        _check_owner(owner)
        arrival = Arrival(line, owner, before, routed)
        return await take_in(self._store, self._clock.now, arrival, items, dry_run=dry_run)

    async def import_note(self, line: NoteLine, *, owner: str, dry_run: bool = False) -> bool:
        """Take in an exported note; false if it is there already, or was forgotten."""
        from everthread.lifecycle.importing import is_new_note, take_note  # noqa: PLC0415 - as above

        _check_owner(owner)
        if dry_run:
            return await self._store.read(lambda uow: is_new_note(uow, line, owner))
        return await self._store.write(lambda uow: take_note(uow, line, owner, self._new_id(), self._clock.now()))

    async def prune(
        self, session_ids: Sequence[str], *, before: float, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[int, int]:
        """Remove those that ended before then and that nothing needs, in this order; how many, with how many turns."""
        from everthread.lifecycle.pruning import prune  # noqa: PLC0415 - as above

        removed = turns = 0
        for session_id in session_ids:
            gone = await self._store.write(lambda uow, s=session_id: prune(uow, s, before))
            removed += gone is not None
            turns += gone or 0
            advance(1)
        if removed:
            await self._clear_traces()
        return removed, turns

    async def suspend(self, *, close_memory: bool = False) -> tuple[Crossing, ...]:
        """This process stops: tell the plugins of every session it has served, and close memory if asked to."""

        def suspend(uow: UnitOfWork) -> tuple[Crossing, ...]:
            setting = self._setting("shutdown")
            boundary = Suspend(close_memory)
            # A key that has moved on was finalized then, and may be on somebody else's session now.
            there = [(key, uow.sessions.ref(key), sid) for sid, key in uow.sessions.served(setting.holder)]
            owners = {key: ref.owner for key, ref, sid in there if ref is not None and ref.session_id == sid}
            return tuple(crossing.cross(uow, key, boundary, owner, setting) for key, owner in owners.items())

        crossed = await self._store.write(suspend)
        for each in crossed:
            _log_crossing(each)
        return crossed

    async def expire_due(self, lease: Lease) -> float | None:
        """Cross `Expire` for every key whose timer is due; when the next one is."""
        now = self._clock.now()
        due = await self._store.peek(lambda uow: uow.lanes.due_timers(now, _TIMERS_AT_ONCE))
        for timer in due:

            def expire(uow: UnitOfWork, key: SessionKey = timer.key) -> Crossing | None:
                setting = self._setting("expiry")
                uow.lanes.check(lease)
                uow.lanes.disarm(crossing.timer_name(key))
                binding = uow.sessions.binding(key)
                if binding is None or binding.session_id is None:
                    return None
                boundary = Expire(self._policies.of(key), setting.now)
                crossed = crossing.cross(uow, key, boundary, binding.owner, setting)
                session = uow.sessions.get(binding.session_id)
                if crossed.refusal is not None and session is not None:
                    crossing.arm_expiry(uow, key, session, self._policies, not_before=setting.now + RECHECK_S)
                return crossed

            crossed = await self._store.write(expire)
            if crossed is not None and crossed.refusal is None:
                _log_crossing(crossed)
        if len(due) == _TIMERS_AT_ONCE:
            return now
        return await self._store.peek(lambda uow: uow.lanes.next_timer())

    def _setting(self, actor: str, order: int | None = None) -> Setting:
        """To be called inside a unit of work: a process stopped before it would write the time of long ago."""
        return Setting(
            self._clock.now(),
            self._new_id,
            self._holder,
            self._policies,
            self._hooks,
            actor,
            before_inbox=order,
            review_every=self._review_every,
            order=order,
            told_of_expiry=self._told_of_expiry,
        )


def _log(text: str, fields: dict[str, object]) -> None:
    """As `log.info`, without looking up on which line of which file it was called: that is most of its cost."""
    if log.isEnabledFor(logging.INFO):
        level = {"levelno": logging.INFO, "levelname": "INFO"}
        log.handle(logging.makeLogRecord({"name": log.name, "msg": text, **level, **fields}))


def _log_crossing(crossed: Crossing) -> None:
    session = crossed.ref.session_id if crossed.ref is not None else crossed.left
    how = "refused" if crossed.refusal is not None else "crossed"
    where = _where(crossed.ref.key) if crossed.ref is not None else {}
    _log(f"{crossed.kind}: {how}", {"session": session, "boundary": crossed.kind, **where})


def _where(key: SessionKey) -> dict[str, str]:
    return {"platform": key.platform, "key": str(key)}


def _check_key(key: SessionKey) -> None:
    """A key must be read back as it was written: rows of one that is not would be nobody's."""
    if not _is_sound(key):
        raise BadKey(f"{key!r:.200} is no session key: one of its parts is empty or can't be written down")


@lru_cache(maxsize=KEYS_KNOWN)
def _is_sound(key: SessionKey) -> bool:
    # To read one costs as much as a small statement, and a turn has its key looked at three times.
    try:
        return SessionKey.parse(str(key)) == key
    except UnicodeEncodeError:
        return False


def _spent_in(uow: UnitOfWork, ref: SessionRef) -> float:
    return sum(used.amount for used in uow.spend.by_model(ref.owner, 0.0, [ref.session_id]))


def _passed(ref: SessionRef, limit: float) -> str:
    if ref.key.platform == SCHEDULED:
        return f"the limit of ${limit:g} for this task would be passed; add it anew with a higher --spend"
    return f"the limit of ${limit:g} for a review would be passed; raise review.spend"


def _check_size(what: str, *texts: str, chars_max: int = TEXT_CHARS_MAX) -> None:
    size = sum(len(text) for text in texts)
    if size > chars_max:
        raise TooLarge(f"{what} has at most {chars_max} characters; this one has {size}")


def _check_owner(owner: str) -> None:
    if not owner or len(owner) > OWNER_CHARS_MAX or whole(owner) != owner:
        raise BadInput(f"an owner is 1 to {OWNER_CHARS_MAX} whole characters long")
