"""What model calls cost: set aside before, settled after.

What an owner's model calls came to: in one conversation, and over time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.domain.errors import BudgetSpent
from everthread.domain.model import SCHEDULED, Cause, Session, SessionRef
from everthread.domain.spend import Spent, Used
from everthread.lifecycle.base import Units
from everthread.store.unit_of_work import UnitOfWork


class SpendUnits(Units):
    """Money that is set aside, and what was spent."""

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
            if limit_of_session is not None:
                # All that was ever spent is looked through for it.
                uow.takes_long()
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

        reserved = await self._store.write_inline(reserve)
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


def _spent_in(uow: UnitOfWork, ref: SessionRef) -> float:
    return sum(used.amount for used in uow.spend.by_model(ref.owner, 0.0, [ref.session_id]))


def _passed(ref: SessionRef, limit: float) -> str:
    if ref.key.platform == SCHEDULED:
        return f"the limit of ${limit:g} for this task would be passed; add it anew with a higher --spend"
    return f"the limit of ${limit:g} for a review would be passed; raise review.spend"


DAY_S = 86_400.0
MONTH_DAYS = 30


class Usage(Struct, frozen=True):
    """By model, the dearest first."""

    conversation: tuple[Used, ...]
    """With the sessions that it was compressed from."""
    day: tuple[Used, ...]
    """Of the last 24 hours, as the limit counts them."""
    month: tuple[Used, ...]


def usage(uow: UnitOfWork, owner: str, session: Session | None, now: float) -> Usage:
    day = uow.spend.by_model(owner, now - DAY_S)
    month = uow.spend.by_model(owner, now - MONTH_DAYS * DAY_S)
    return Usage(of_conversation(uow, session) if session else (), day, month)


def of_conversation(uow: UnitOfWork, session: Session) -> tuple[Used, ...]:
    """By model, with the sessions that it was compressed from."""
    ids, first = [session.id], session
    while first.cause is Cause.COMPRESSION and (parent := uow.sessions.get(first.parent_id or "")) is not None:
        first = parent
        ids.append(first.id)
    # Nothing was spent in it before it was opened: older rows need not be looked at.
    return uow.spend.by_model(session.owner, first.opened_at, ids)
