"""Letting strangers in: a code is offered, somebody who may approves it, and from then on the account is a guest's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import BadInput, LockedOut, NotFound
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.domain.pairing import (
    CODE_S,
    PENDING_MAX,
    Paired,
    Pairing,
    account_of,
    as_typed,
    hash_of,
    holds,
    is_of,
    locked_s,
    one_more,
    person_problem,
)
from everthread.domain.text_format import counted
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import Store, UnitOfWork

SENDING_S = 60.0
"""So long a code holds that is on its way: if its process dies then, the stranger is soon given another."""
LET_IN = "You are let in: write to me."
TERMINAL = "terminal"
"""Whose wrong codes those are that are typed at this machine."""


class Known(Struct, frozen=True):
    """Who waits to be let in, and who was."""

    waiting: tuple[Pairing, ...]
    guests: tuple[Paired, ...]


class Pairings:
    """The only writer of guests, codes and wrong codes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def known(self) -> Known:
        now = self._clock.now()
        return await self._store.read(
            lambda uow: Known(tuple(p for p in uow.access.pairings() if holds(p, now)), uow.access.guests())
        )

    async def is_worth_asking(self, platform: str, user: str) -> bool:
        """Whether `offer` would have a code for them: asked for every message of a stranger, so it writes nothing."""
        return await self._store.read_inline(lambda uow: _has_room(uow, platform, user, self._clock.now()))

    async def offer(self, platform: str, user: str, name: str, code: str) -> Pairing | None:
        """Have the code hold for as long as it may take to send it. `None` if they have one, or too many others do."""

        def offer(uow: UnitOfWork) -> Pairing | None:
            now = self._clock.now()
            if not _has_room(uow, platform, user, now):
                return None
            for old in uow.access.pairings():
                if not holds(old, now):
                    uow.access.drop_pairing(old.platform, old.user)
            pairing = Pairing(platform, user, hash_of(platform, user, code), name, now, now + SENDING_S)
            uow.access.put_pairing(pairing)
            return pairing

        return await self._store.write(offer)

    async def sent(self, pairing: Pairing, key: SessionKey, message_id: str | None) -> None:
        """The stranger has the code, at that key: it holds for its whole time from now on."""

        def sent(uow: UnitOfWork) -> None:
            if uow.access.pairing(pairing.platform, pairing.user) == pairing:
                now = self._clock.now()
                uow.access.put_pairing(replace(pairing, expires_at=now + CODE_S))
                name = sent_name(pairing.platform, pairing.user, pairing.at)
                # Where to tell them that they are let in. What was said there is not kept: it has the code in it.
                uow.outbox.put_reply(Reply(name, key, "", pairing.account, "", ReplyState.SENT, now, message_id, 1))

        await self._store.write(sent)

    async def withdraw(self, pairing: Pairing) -> None:
        """The code has not reached them: they may be given another."""

        def withdraw(uow: UnitOfWork) -> None:
            if uow.access.pairing(pairing.platform, pairing.user) == pairing:
                uow.access.drop_pairing(pairing.platform, pairing.user)

        await self._store.write(withdraw)

    async def approve(self, code: str, *, scope: str, owner: str = "") -> Paired:
        """Let in whoever was given the code, as that person or as one of their own; they are told.

        `scope` is who approves: after too many wrong codes of theirs none is looked at for a while. Raises `NotFound`
        for a wrong code, `LockedOut` after too many.
        """
        if owner and (problem := person_problem(owner)):
            raise BadInput(problem)

        def approve(uow: UnitOfWork) -> Paired | float | None:
            now = self._clock.now()
            wrong = uow.access.wrong_codes(scope)
            if left_s := locked_s(wrong, now):
                return left_s
            typed = as_typed(code)
            # Every one is compared, so that the time it takes tells nothing.
            found = [p for p in uow.access.pairings() if is_of(p, typed) & holds(p, now)]
            if not found:
                wrong = one_more(wrong, scope, now)
                uow.access.put_wrong_codes(wrong)
                return locked_s(wrong, now) or None
            uow.access.drop_wrong_codes(scope)
            return _let_in(uow, found[0], owner, now)

        found = await self._store.write(approve)
        if found is None:
            raise NotFound("no one waits with that code; codes hold for an hour, and a stranger who writes gets one")
        if isinstance(found, Paired):
            return found
        minutes = counted(max(math.ceil(found / 60), 1), "minute")
        raise LockedOut(f"too many wrong codes; no code is looked at for {minutes}")

    async def take_in(self, guests: Sequence[Paired], *, dry_run: bool = False) -> tuple[Paired, ...]:
        """Let in those who were let in elsewhere, and are not here yet; who they are. Nobody is told."""

        def missing(uow: UnitOfWork) -> tuple[Paired, ...]:
            return tuple(guest for guest in guests if uow.access.guest(guest.platform, guest.user) is None)

        def take_in(uow: UnitOfWork) -> tuple[Paired, ...]:
            new = missing(uow)
            for guest in new:
                uow.access.drop_pairing(guest.platform, guest.user)
                uow.access.let_in(guest)
            return new

        return await (self._store.read(missing) if dry_run else self._store.write(take_in))

    async def revoke(self, platform: str, user: str) -> bool:
        """Let them in no more, and have their code hold no more; whether there was anything of either."""

        def revoke(uow: UnitOfWork) -> bool:
            guest = uow.access.guest(platform, user)
            if guest is not None:
                told = uow.outbox.reply(told_name(guest))
                if told is not None and told.state is ReplyState.READY:
                    uow.outbox.put_reply(replace(told, state=ReplyState.WITHHELD))
            waited = uow.access.drop_pairing(platform, user)
            return uow.access.turn_out(platform, user) or waited

        return await self._store.write(revoke)


def sent_name(platform: str, user: str, at: float) -> str:
    """The message that shows a stranger a code."""
    return f"code-{account_of(platform, user)}-{at:.3f}"


def told_name(guest: Paired) -> str:
    """The message that tells a guest that they are let in."""
    return f"let-in-{guest.account}-{guest.at:.3f}"


def _has_room(uow: UnitOfWork, platform: str, user: str, now: float) -> bool:
    waiting = [pairing for pairing in uow.access.pairings(platform) if holds(pairing, now)]
    return len(waiting) < PENDING_MAX and all(pairing.user != user for pairing in waiting)


def _let_in(uow: UnitOfWork, pairing: Pairing, owner: str, now: float) -> Paired:
    guest = Paired(pairing.platform, pairing.user, owner or pairing.account, pairing.name, now)
    uow.access.drop_pairing(pairing.platform, pairing.user)
    uow.access.let_in(guest)
    shown = uow.outbox.reply(sent_name(pairing.platform, pairing.user, pairing.at))
    if shown is not None:
        uow.outbox.put_reply(Reply(told_name(guest), shown.key, "", guest.owner, LET_IN, ReplyState.READY, now))
    return guest
