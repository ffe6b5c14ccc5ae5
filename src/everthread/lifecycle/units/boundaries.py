"""Boundaries of keys, and what else is said of a session by hand."""

from __future__ import annotations

from everthread.domain import titles
from everthread.domain.boundary import Boundary, Expire, Forget, Resume, Suspend
from everthread.domain.errors import TitleTaken
from everthread.domain.model import Lease, Reply, ReplyState, SessionKey, SessionRef
from everthread.lifecycle import crossing
from everthread.lifecycle.checks import check_key, check_owner
from everthread.lifecycle.crossing import Crossing
from everthread.lifecycle.logged import log_crossing
from everthread.lifecycle.units import Units
from everthread.ports.store import UnitOfWork

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
        crossed = await self._store.jot(
            lambda uow: crossing.cross(uow, key, boundary, owner, self._setting(actor, order))
        )
        log_crossing(crossed)
        return crossed

    async def current(self, key: SessionKey) -> SessionRef | None:
        """Where a key is now."""
        return await self._store.peek(lambda uow: uow.sessions.ref(key))

    async def hand_over(self, key: SessionKey, session_id: str, text: str, *, owner: str) -> Crossing:
        """Go on with a session at another of the owner's keys, and say so there."""

        def hand_over(uow: UnitOfWork) -> Crossing:
            crossed = crossing.cross(uow, key, Resume(session_id), owner, self._setting("handoff"))
            if crossed.refusal is None and crossed.ref is not None:
                name, at = f"handoff-{self._new_id()}", self._clock.now()
                uow.inbox.put_reply(Reply(name, key, crossed.ref.session_id, owner, text, ReplyState.READY, at))
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
            log_crossing(each)
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
                log_crossing(crossed)
        if len(due) == _TIMERS_AT_ONCE:
            return now
        return await self._store.peek(lambda uow: uow.lanes.next_timer())
