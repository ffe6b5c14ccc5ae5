"""Carrying a boundary out: the one place that changes what a key is on and what a session shows.

Boundaries of keys, and what else is said of a session by hand.

The lines that boundaries and turns leave in the log file: ids only, and no words of anybody's.
"""

from __future__ import annotations

import logging

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain import titles
from everthread.domain.boundary import (
    Boundary,
    BoundaryPlan,
    BoundaryState,
    Branch,
    Compress,
    Expire,
    Forget,
    New,
    Opening,
    Refusal,
    Reset,
    Resume,
    Rewind,
    Suspend,
    as_of,
    plan,
)
from everthread.domain.errors import DoneBefore, Gone, NotFound, TitleTaken
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    Binding,
    Cause,
    Fate,
    HookCall,
    InboxRow,
    InboxState,
    Lease,
    Message,
    Prefix,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionRef,
    Timer,
    TurnStatus,
)
from everthread.domain.reset_policy import ResetPolicies
from everthread.domain.review_window import Window
from everthread.lifecycle.base import Units, WriteContext
from everthread.lifecycle.event_log import append, close, ref_to
from everthread.lifecycle.reviews import note_rest
from everthread.lifecycle.validation import check_key, check_owner
from everthread.log_context import log_fields, log_info
from everthread.store.sessions import BoundaryRow, Whereabouts
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.lifecycle")

REWIND_MAX = 1_000_000
JOTTED_TURNS_MAX = 100
ENDED_BY_ITSELF = {
    Cause.IDLE: "Nobody wrote here for a while, so that conversation has ended; /resume goes back to it.",
    Cause.DAILY: "A new day: yesterday's conversation has ended; /resume goes back to it.",
}


class Crossing(Struct, frozen=True):
    """What a boundary did. `ref` is where the key is now; `refusal` says why nothing changed."""

    kind: str
    ref: SessionRef | None
    left: str | None = None
    refusal: Refusal | None = None
    set_aside: tuple[InboxRow, ...] = ()
    hidden: tuple[int, ...] = ()
    """Rewind: the turns that are not seen any more, the running one not among them."""
    cancelled: bool = False
    """A turn was running, and what comes of it is not shown where the key is now."""
    unanswered: tuple[InboxRow, ...] = ()
    """The messages that it was to answer."""


def cross(uow: UnitOfWork, key: SessionKey, boundary: Boundary, owner: str, setting: WriteContext) -> Crossing:
    kind = type(boundary).__name__.lower()
    here = uow.sessions.whereabouts(key, timer_name(key))
    binding, session = here.binding or Binding(key, owner, None, 0), here.session
    if session is not None and session.owner != owner and not isinstance(boundary, New | Reset):
        # Whoever takes a key over may start afresh there; what was said before is not theirs.
        raise NotFound(f"{key} is on no session of yours; start one with /new")
    if setting.order is not None:
        _begin_order(uow, setting.order)
    place = _look(uow, binding, here, boundary, owner, setting.holder)
    step = plan(place, boundary, new_id=setting.new_id(), now=setting.now)
    if step.refusal is not None:
        return Crossing(kind, ref_to(session, key, binding.epoch) if session else None, refusal=step.refusal)

    if step.sets_aside and here.awaited:
        uow.takes_long()
    unanswered = _settle_running(uow, session, step, owner) if session is not None else ()
    waiting = uow.inbox.waiting(key, setting.before_inbox) if step.sets_aside and here.awaited else ()
    aside: tuple[InboxRow, ...] = ()
    if session is not None:
        session, aside = _set_aside(uow, session, waiting, setting.now)
        session = _leave(uow, session, place, binding.epoch, step, setting.now)
        if step.closes:
            note_rest(uow, session, setting.review_every, setting.now)
    parent = place.target if isinstance(boundary, Branch) and boundary.parent else session
    if session is not None and parent is not None and parent.id == session.id:
        # As it has been left.
        parent = session
    opened = _open(uow, step.opens, parent, binding, setting.now) if step.opens else None
    if opened is not None and len(aside) < len(waiting):
        opened, more = _set_aside(uow, opened, tuple(row for row in waiting if row not in aside), setting.now)
        uow.sessions.save(opened)
        aside += more
    on = opened or (session if step.stays or not step.moves else None)
    _move(uow, binding, step, on, owner)
    epoch = binding.epoch + (1 if step.moves else 0)
    uow.sessions.add_boundary(
        BoundaryRow(
            kind,
            key,
            owner,
            session.id if session else None,
            on.id if on else None,
            epoch,
            setting.actor,
            setting.now,
        )
    )
    _announce(uow, key, session, opened if step.opens and step.opens.fresh else None, step, setting)
    if step.pending is not None and session is not None and key.platform in setting.told_of_expiry:
        name, text = f"ended-{uow.sessions.last_boundary()}", ENDED_BY_ITSELF[step.pending]
        uow.outbox.put_reply(Reply(name, key, session.id, session.owner, text, ReplyState.READY, setting.now))
    _arm(uow, key, here, on, setting)
    return Crossing(
        kind,
        ref_to(on, key, epoch) if on else None,
        session.id if session else None,
        set_aside=aside,
        hidden=step.hides,
        cancelled=step.fate is not Fate.LIVE,
        unanswered=unanswered,
    )


def order_turn(inbox_id: int) -> str:
    """What stands where a turn's id would, for what answers a command."""
    return f"order-{inbox_id}"


def _begin_order(uow: UnitOfWork, inbox_id: int) -> None:
    row = uow.inbox.get(inbox_id)
    if row is None or row.state is not InboxState.WAITING:
        raise DoneBefore(f"command {inbox_id} was carried out before")
    uow.inbox.take_up(inbox_id, "", order_turn(inbox_id))


def owned(uow: UnitOfWork, session_id: str, owner: str) -> Session:
    """The owner's session, or an error that does not tell `somebody else's` from `unknown`."""
    session = uow.sessions.get(session_id)
    if session is None or session.owner != owner:
        raise NotFound(f"there is no session {session_id!r}; `sessions list` shows the ones there are")
    if session.forgotten_seq is not None:
        raise Gone(f"session {session_id!r} was forgotten")
    return session


def _look(
    uow: UnitOfWork, binding: Binding, here: Whereabouts, boundary: Boundary, owner: str, holder: str
) -> BoundaryState:
    """Read what the plan needs to know, and no more."""
    key, session = binding.key, here.session
    target = None
    if named := _named(boundary):
        target = owned(uow, named, owner)
        if not (isinstance(boundary, Branch) and boundary.as_it_was):
            target = uow.sessions.tip(target.id)
    parent = owned(uow, boundary.parent, owner) if isinstance(boundary, New) and boundary.parent else None
    place = BoundaryState(
        key,
        owner,
        session,
        binding.pending,
        other_keys=here.other_keys,
        running=here.running,
        kind=binding.kind,
        target=target,
        parent=parent,
        titles=_taken_titles(uow, boundary, target or session, owner),
    )
    if session is None:
        return place
    match boundary:
        case Rewind():
            if boundary.turns > JOTTED_TURNS_MAX:
                uow.takes_long()
            return replace(place, visible=uow.turns.last_visible(session, min(boundary.turns, REWIND_MAX)))
        case Compress():
            return replace(place, burials=uow.erasure.burials(owner))
        case Suspend():
            return replace(place, served=uow.sessions.is_served(holder, session.id))
        case Expire():
            waiting = uow.inbox.first_waiting(key) if here.awaited else None
            since = waiting.accepted_at if waiting else None
            return replace(place, waiting_since=since, delegated=uow.slots.delegated(session.id))
        case _:
            return place


def _named(boundary: Boundary) -> str:
    """The session that a boundary goes to, or grows out of, wherever its key is."""
    match boundary:
        case Resume():
            return boundary.target
        case Branch():
            return boundary.parent
        case _:
            return ""


def _taken_titles(uow: UnitOfWork, boundary: Boundary, session: Session | None, owner: str) -> tuple[str, ...]:
    wanted = boundary.title if isinstance(boundary, New | Reset | Branch) else ""
    if not wanted and isinstance(boundary, Branch | Compress) and session is not None:
        wanted = session.title or ""
    return tuple(other.title or "" for other in uow.sessions.titled(owner, wanted)) if wanted else ()


def _settle_running(uow: UnitOfWork, session: Session, step: BoundaryPlan, owner: str) -> tuple[InboxRow, ...]:
    """Which of the owner's messages the running turn was to answer, if nothing comes of it here."""
    running = uow.slots.live(session.id) if step.fate is not Fate.LIVE else None
    if running is None:
        return ()
    uow.slots.set_fate(running.turn_id, step.fate)
    return tuple(row for row in uow.inbox.of_turn(running.ref.key, running.turn_id) if row.inbound.owner == owner)


def _set_aside(
    uow: UnitOfWork, session: Session, rows: tuple[InboxRow, ...], now: float
) -> tuple[Session, tuple[InboxRow, ...]]:
    """Keep unanswered messages in a session of the person who wrote them; those of somebody else are left alone."""
    theirs = tuple(row for row in rows if row.inbound.owner == session.owner)
    for row in theirs:
        number = session.last_turn + 1
        turn_id = f"aside-{row.id}"
        message = Message(Role.USER, row.inbound.text)
        uow.turns.add(session, number, turn_id, TurnStatus.SET_ASIDE, (message,), now)
        uow.inbox.set_aside(row.id, session.id, turn_id)
        session = session.but(last_turn=number)
    return session, theirs


def _leave(
    uow: UnitOfWork, session: Session, place: BoundaryState, epoch: int, step: BoundaryPlan, now: float
) -> Session:
    ref = ref_to(session, place.key, epoch)
    generation = session.generation
    if step.stays:
        session = session.but(generation=session.generation + 1)
    if step.hides:
        detail: dict[str, object] = {"turns": list(step.hides)}
        session = append(uow, session, ref_to(session, place.key, epoch + 1), EntryKind.REWIND, now, detail=detail)
        uow.turns.hide(session, step.hides, session.log_seq)
        uow.reviews.stop(session.id, Window(min(step.hides), max(step.hides)))
    if step.closes:
        session = close(uow, session, ref, now)
    if step.ends:
        session = session.ended(step.ends, now)
    if session.generation != generation and not all(key in step.moves for key in (place.key, *place.other_keys)):
        uow.sessions.renew(session)
    else:
        uow.sessions.save(session)
    return session


def _open(uow: UnitOfWork, opening: Opening, parent: Session | None, binding: Binding, now: float) -> Session:
    session = opening.session
    if not opening.fresh:
        session = session.but(ended_at=None, end_reason=None, active_at=now)
    elif parent is not None and opening.inherits:
        session = as_of(session, parent)
    detail: dict[str, object] = {"parent": opening.parent_id, "reset": opening.reset, "reason": opening.reason.value}
    ref = ref_to(session, binding.key, binding.epoch + 1)
    # The opened entry comes before any turn, so a provider knows the parent first.
    session = append(uow, session, ref, EntryKind.OPENED, now, detail=detail)
    if opening.fresh:
        uow.sessions.add(session, opening.summary)
        if parent is not None and opening.reason is Cause.BRANCH:
            _copy_prefix(uow, parent, session, now)
    else:
        uow.sessions.save(session)
    return session


def _copy_prefix(uow: UnitOfWork, parent: Session, child: Session, now: float) -> None:
    """A branch goes on with its parent's prefix, byte for byte, so that prompt caches stay warm."""
    prefix = uow.turns.prefix(parent.id)
    if prefix is not None:
        uow.turns.put_prefix(Prefix(child.id, 1, prefix.content, now), child.owner)


def _move(uow: UnitOfWork, binding: Binding, step: BoundaryPlan, on: Session | None, owner: str) -> None:
    for key in step.moves:
        at = binding if key == binding.key else uow.sessions.binding(key)
        assert at is not None
        whose = owner if key == binding.key else at.owner
        # Only what starts afresh says what a key is for: who resumes a scheduled session goes on as a person.
        kind = on.kind if on and step.opens and step.opens.reset else at.kind
        bound = Binding(key, whose, on.id if on else None, at.epoch + 1, step.pending, kind)
        uow.sessions.bind(bound, same_owner=at.owner == whose)


def _announce(
    uow: UnitOfWork,
    key: SessionKey,
    left: Session | None,
    fresh: Session | None,
    step: BoundaryPlan,
    setting: WriteContext,
) -> None:
    """Write the plugin hooks down; they run after the commit, in this order."""
    if left is not None:
        if any(call.hook == "on_session_finalize" for call in step.hooks):
            uow.sessions.finalized(left.id)
        elif fresh is not None and fresh.cause is Cause.COMPRESSION:
            uow.sessions.serving_moved(left.id, fresh.id)
    if not setting.hooks:
        return
    session_id = fresh.id if fresh else left.id if left else ""
    boundary = HookCall("on_boundary", session_id, key.platform, {"id": str(uow.sessions.last_boundary())})
    start = (HookCall("on_session_start", fresh.id, key.platform),) if fresh is not None else ()
    for call in (*step.hooks, *start, boundary):
        if call.hook in setting.hooks:
            uow.leases.add_hook(key, call, setting.now)


def _arm(uow: UnitOfWork, key: SessionKey, here: Whereabouts, on: Session | None, setting: WriteContext) -> None:
    if on is None and here.armed:
        uow.leases.disarm(timer_name(key))
    elif on is not None and not here.armed:
        arm_expiry(uow, key, on, setting.policies)


def timer_name(key: SessionKey) -> str:
    return f"expire:{key}"


def arm_expiry(
    uow: UnitOfWork, key: SessionKey, session: Session, policies: ResetPolicies, *, not_before: float = 0.0
) -> None:
    """Set the key's expiry timer, unless it is set: one that fires too early is checked and set again."""
    due = policies.of(key).due(session.active_at)
    if due is not None:
        uow.leases.arm(Timer(timer_name(key), max(due, not_before), key))


RECHECK_S = 30.0
_TIMERS_AT_ONCE = 64


class BoundaryUnits(Units):
    """Where a key is, and how it gets elsewhere."""

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
        check_key(key)
        check_owner(owner)
        crossed = await self._store.write_inline(
            lambda uow: cross(uow, key, boundary, owner, self._setting(actor, order))
        )
        log_crossing(crossed)
        return crossed

    async def current(self, key: SessionKey) -> SessionRef | None:
        """Where a key is now."""
        return await self._store.read_inline(lambda uow: uow.sessions.ref(key))

    async def hand_over(self, key: SessionKey, session_id: str, text: str, *, owner: str) -> Crossing:
        """Go on with a session at another of the owner's keys, and say so there."""

        def hand_over(uow: UnitOfWork) -> Crossing:
            crossed = cross(uow, key, Resume(session_id), owner, self._setting("handoff"))
            if crossed.refusal is None and crossed.ref is not None:
                name, at = f"handoff-{self._new_id()}", self._clock.now()
                uow.outbox.put_reply(Reply(name, key, crossed.ref.session_id, owner, text, ReplyState.READY, at))
            return crossed

        crossed = await self._store.write(hand_over)
        log_crossing(crossed)
        return crossed

    async def choose_model(self, key: SessionKey, model: str, *, owner: str) -> None:
        """Have that model answer at the key from now on; an empty name is the usual one."""
        await self._store.write(lambda uow: uow.sessions.choose_model(key, owner, model))

    async def rename(self, session_id: str, title: str, *, owner: str, only_if_none: bool = False) -> str:
        """Give a session a title that no other of its owner has; the title it has then."""
        title = titles.clean(title)

        def rename(uow: UnitOfWork) -> str:
            session = owned(uow, session_id, owner)
            if only_if_none and session.title:
                return session.title
            taken = {titles.fold(s.title or ""): s.id for s in uow.sessions.titled(owner, title)}
            if taken.get(titles.fold(title), session.id) != session.id:
                free = titles.next_title(title, taken)
                raise TitleTaken(f"another session is already called {title!r}; choose another title, say {free!r}")
            uow.sessions.set_title(session.id, title)
            return title

        return await self._store.write(rename)

    async def suspend(self, *, close_memory: bool = False) -> tuple[Crossing, ...]:
        """This process stops: tell the plugins of every session it has served, and close memory if asked to."""

        def suspend(uow: UnitOfWork) -> tuple[Crossing, ...]:
            setting = self._setting("shutdown")
            boundary = Suspend(close_memory)
            # A key that has moved on was finalized then, and may be on somebody else's session now.
            there = [(key, uow.sessions.ref(key), sid) for sid, key in uow.sessions.served(setting.holder)]
            owners = {key: ref.owner for key, ref, sid in there if ref is not None and ref.session_id == sid}
            return tuple(cross(uow, key, boundary, owner, setting) for key, owner in owners.items())

        crossed = await self._store.write(suspend)
        for each in crossed:
            log_crossing(each)
        return crossed

    async def expire_due(self, lease: Lease) -> float | None:
        """Cross `Expire` for every key whose timer is due; when the next one is."""
        now = self._clock.now()
        due = await self._store.read_inline(lambda uow: uow.leases.due_timers(now, _TIMERS_AT_ONCE))
        for timer in due:

            def expire(uow: UnitOfWork, key: SessionKey = timer.key) -> Crossing | None:
                setting = self._setting("expiry")
                uow.leases.check(lease)
                uow.leases.disarm(timer_name(key))
                binding = uow.sessions.binding(key)
                if binding is None or binding.session_id is None:
                    return None
                boundary = Expire(self._policies.of(key), setting.now)
                crossed = cross(uow, key, boundary, binding.owner, setting)
                session = uow.sessions.get(binding.session_id)
                if crossed.refusal is not None and session is not None:
                    arm_expiry(uow, key, session, self._policies, not_before=setting.now + RECHECK_S)
                return crossed

            crossed = await self._store.write(expire)
            if crossed is not None and crossed.refusal is None:
                log_crossing(crossed)
        if len(due) == _TIMERS_AT_ONCE:
            return now
        return await self._store.read_inline(lambda uow: uow.leases.next_timer())


def log_crossing(crossed: Crossing) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    session = crossed.ref.session_id if crossed.ref is not None else crossed.left
    how = "refused" if crossed.refusal is not None else "crossed"
    where = log_fields(crossed.ref.key) if crossed.ref is not None else {}
    log_info(log, f"{crossed.kind}: {how}", {"session": session, "boundary": crossed.kind, **where})
