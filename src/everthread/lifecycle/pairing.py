"""Pairing: offer an unknown account a code; when an authorised person approves it, the account becomes a guest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.errors import BadInput, LockedOut, NotFound
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.domain.pairing import (
    ACCOUNT_S,
    CODE_S,
    PLATFORM_CODES_MAX,
    PairedAccount,
    PairingRequest,
    count_wrong_code,
    format_account,
    hash_code,
    is_valid,
    lockout_s,
    matches_code,
    next_request,
    normalize_code,
    person_problem,
)
from everthread.domain.text_format import pluralize
from everthread.lifecycle.base import StoreOperations, transaction
from everthread.store.unit_of_work import UnitOfWork

SENDING_S = 60.0
"""Lifetime of a code while it is being sent. It is short, so that a code lost in a crash is soon replaced."""
APPROVED_TEXT = "You have access now. Write me a message."
TERMINAL = "terminal"
"""Scope that counts the wrong codes typed at this machine."""


class PairingList(Struct, frozen=True):
    """Pending pairings and paired guests."""

    waiting: tuple[PairingRequest, ...]
    guests: tuple[PairedAccount, ...]


class Pairings(StoreOperations):
    """Pairing operations: the only writer of guests, codes and counts of wrong codes."""

    async def list_all(self) -> PairingList:
        now = self._clock.now()
        return await self._store.read(
            lambda uow: PairingList(tuple(p for p in uow.access.pairings() if is_valid(p, now)), uow.access.guests())
        )

    async def may_offer(self, platform: str, user: str) -> bool:
        """Return True if `offer` would offer a code. Only reads, because it runs for every message of a stranger."""
        return await self._store.read_inline(
            lambda uow: _next_request(uow, platform, user, self._clock.now()) is not None
        )

    @transaction
    def offer(self, uow: UnitOfWork, platform: str, user: str, name: str, code: str) -> PairingRequest | None:
        """Store a code that is valid while it is sent. Returns None if the account has one, or had too many.

        All accounts of a platform together get a limited number of codes an hour. An account gets one at a
        time and a few a day, so that a few strangers cannot use them up.
        """
        now = self._clock.now()
        request = _next_request(uow, platform, user, now)
        if request is None:
            return None
        # Kept for a day after they expire: they count against their account.
        uow.access.drop_old_pairings(platform, now - ACCOUNT_S, latest_deadline(now))
        pairing = replace(request, code_hash=hash_code(platform, user, code), name=name)
        uow.access.put_pairing(pairing)
        return pairing

    @transaction
    def mark_sent(self, uow: UnitOfWork, pairing: PairingRequest, key: SessionKey, message_id: str | None) -> None:
        """Record that the code was sent to that key. Its full lifetime starts now."""
        if uow.access.pairing(pairing.platform, pairing.user) == pairing:
            now = self._clock.now()
            uow.access.put_pairing(replace(pairing, expires_at=now + CODE_S))
            name = code_reply_id(pairing.platform, pairing.user, pairing.at)
            # Approval is announced at the key of this reply. The text is not stored: it contains the code.
            uow.outbox.put_reply(Reply(name, key, "", pairing.account, "", ReplyState.SENT, now, message_id, 1))

    @transaction
    def withdraw(self, uow: UnitOfWork, pairing: PairingRequest) -> None:
        """End a code that could not be sent. It does not count against the account, and another can be offered."""
        if uow.access.pairing(pairing.platform, pairing.user) == pairing:
            uow.access.put_pairing(replace(pairing, expires_at=self._clock.now(), codes=pairing.codes - 1))

    async def approve(self, code: str, *, scope: str, owner: str = "") -> PairedAccount:
        """Approve a code and queue a message to the new guest. An empty `owner` makes the account its own owner.

        `scope` names the approver, whose wrong codes are counted. Raises `NotFound` for a wrong code, and `LockedOut`
        for a while after too many.
        """
        if owner and (problem := person_problem(owner)):
            raise BadInput(problem)

        def approve(uow: UnitOfWork) -> PairedAccount | float | None:
            now = self._clock.now()
            wrong = uow.access.wrong_codes(scope)
            if left_s := lockout_s(wrong, now):
                return left_s
            typed = normalize_code(code)
            # Compare every code, so that the timing reveals nothing.
            found = [p for p in uow.access.pairings() if matches_code(p, typed) & is_valid(p, now)]
            if not found:
                wrong = count_wrong_code(wrong, scope, now)
                uow.access.put_wrong_codes(wrong)
                return lockout_s(wrong, now) or None
            uow.access.drop_wrong_codes(scope)
            return _approve(uow, found[0], owner, now)

        found = await self._store.write(approve)
        if found is None:
            raise NotFound("no user has that code; a code is valid for an hour, and strangers get one when they write")
        if isinstance(found, PairedAccount):
            return found
        minutes = pluralize(max(math.ceil(found / 60), 1), "minute")
        raise LockedOut(f"too many wrong codes; try again in {minutes}")

    async def import_guests(
        self, guests: Sequence[PairedAccount], *, dry_run: bool = False
    ) -> tuple[PairedAccount, ...]:
        """Import guests paired elsewhere, without a message to them. Returns those that were missing here."""

        def missing(uow: UnitOfWork) -> tuple[PairedAccount, ...]:
            return tuple(guest for guest in guests if uow.access.guest(guest.platform, guest.user) is None)

        def add_missing(uow: UnitOfWork) -> tuple[PairedAccount, ...]:
            new = missing(uow)
            for guest in new:
                uow.access.drop_pairing(guest.platform, guest.user)
                uow.access.add_guest(guest)
            return new

        return await (self._store.read(missing) if dry_run else self._store.write(add_missing))

    @transaction
    def revoke(self, uow: UnitOfWork, platform: str, user: str) -> bool:
        """Remove a guest and any pending code. Returns True if either existed."""
        guest = uow.access.guest(platform, user)
        if guest is not None:
            reply = uow.outbox.reply(approval_reply_id(guest))
            if reply is not None and reply.state is ReplyState.READY:
                uow.outbox.put_reply(replace(reply, state=ReplyState.WITHHELD))
        had_code = uow.access.drop_pairing(platform, user)
        return uow.access.remove_guest(platform, user) or had_code


def code_reply_id(platform: str, user: str, at: float) -> str:
    """Return the outbox name of the message with a code."""
    return f"code-{format_account(platform, user)}-{at:.3f}"


def approval_reply_id(guest: PairedAccount) -> str:
    """Return the outbox name of the message that announces the approval."""
    return f"let-in-{guest.account}-{guest.at:.3f}"


def _next_request(uow: UnitOfWork, platform: str, user: str, now: float) -> PairingRequest | None:
    request = next_request(uow.access.pairing(platform, user), platform, user, now, SENDING_S)
    if request is None:
        return None
    recent = uow.access.recent_pairings(platform, now - CODE_S, latest_deadline(now), PLATFORM_CODES_MAX)
    return request if recent < PLATFORM_CODES_MAX else None


def _approve(uow: UnitOfWork, pairing: PairingRequest, owner: str, now: float) -> PairedAccount:
    guest = PairedAccount(pairing.platform, pairing.user, owner or pairing.account, pairing.name, now)
    uow.access.drop_pairing(pairing.platform, pairing.user)
    uow.access.add_guest(guest)
    code_reply = uow.outbox.reply(code_reply_id(pairing.platform, pairing.user, pairing.at))
    if code_reply is not None:
        uow.outbox.put_reply(
            Reply(approval_reply_id(guest), code_reply.key, "", guest.owner, APPROVED_TEXT, ReplyState.READY, now)
        )
    return guest
