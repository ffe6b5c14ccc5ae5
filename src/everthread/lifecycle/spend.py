"""Reserve the cost of a model call before it, settle it afterwards, and report usage."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.errors import BudgetExceeded
from everthread.domain.model import CRON_PLATFORM, Cause, Session, SessionRef
from everthread.domain.spend import ModelUsage, SpendEntry
from everthread.lifecycle.base import LifecycleBase, transaction
from everthread.store.unit_of_work import UnitOfWork

DAY_S = 86_400.0
MONTH_DAYS = 30


class Usage(Struct, frozen=True):
    """Cost and tokens by model, most expensive first."""

    conversation: tuple[ModelUsage, ...]
    """Includes the sessions that the conversation was compressed from."""
    day: tuple[ModelUsage, ...]
    """The last 24 hours, as the daily limit counts them."""
    month: tuple[ModelUsage, ...]


class SpendOperations(LifecycleBase):
    """Enforce spending limits."""

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
        spent: Sequence[SpendEntry] = (),
    ) -> int:
        """Reserve money for a call, after settling the turn's earlier calls. Raises `BudgetExceeded` beyond a limit."""

        def reserve(uow: UnitOfWork) -> int | str:
            now = self._clock.now()
            if limit_of_session is not None:
                # Reads every cost row of the session.
                uow.leave_event_loop()
            for cost in spent:
                uow.spend.settle(cost, ref, turn_id, now)
            spent_today = (
                uow.spend.total(ref.owner, now - DAY_S, latest_deadline(now)) if limit_per_day is not None else 0.0
            )
            if limit_per_day is not None and spent_today + amount > limit_per_day:
                return f"the limit of ${limit_per_day:g} in 24 hours would be exceeded; wait, or raise spend_per_day"
            if limit_of_session is not None and _spent_in(uow, ref) + amount > limit_of_session:
                return (
                    f"the limit of ${limit_of_session:g} for a delegated task would be exceeded; delegate less at once"
                )
            if limit_of_turn is not None and uow.spend.of_turn(ref, turn_id, now - DAY_S) + amount > limit_of_turn:
                return _turn_limit_message(ref, limit_of_turn)
            return uow.spend.reserve(ref, turn_id, model, amount, now)

        # A refusal is returned, not raised, so that the earlier calls stay settled.
        reserved = await self._store.write_inline(reserve)
        if isinstance(reserved, str):
            raise BudgetExceeded(reserved)
        return reserved

    @transaction
    def settle_spend(self, uow: UnitOfWork, ref: SessionRef, turn_id: str, spent: Sequence[SpendEntry]) -> None:
        """Record the cost of calls whose turn is not committed."""
        for cost in spent:
            uow.spend.settle(cost, ref, turn_id, self._clock.now())

    async def usage(self, owner: str, session: Session | None = None) -> Usage:
        """Return the usage of an owner, and of one of their conversations."""

        def read(uow: UnitOfWork) -> Usage:
            now = self._clock.now()
            day = uow.spend.by_model(owner, now - DAY_S, until=latest_deadline(now))
            month = uow.spend.by_model(owner, now - MONTH_DAYS * DAY_S, until=latest_deadline(now))
            return Usage(conversation_usage(uow, session) if session else (), day, month)

        return await self._store.read(read)


def conversation_usage(uow: UnitOfWork, session: Session) -> tuple[ModelUsage, ...]:
    """Return the usage by model, including the sessions that this one was compressed from."""
    ids, first = [session.id], session
    while first.cause is Cause.COMPRESSION and (parent := uow.sessions.get(first.parent_id or "")) is not None:
        first = parent
        ids.append(first.id)
    # No cost is older than the first session: earlier rows need not be read.
    return uow.spend.by_model(session.owner, first.opened_at, ids)


def _spent_in(uow: UnitOfWork, ref: SessionRef) -> float:
    return sum(used.amount for used in uow.spend.by_model(ref.owner, 0.0, [ref.session_id]))


def _turn_limit_message(ref: SessionRef, limit: float) -> str:
    if ref.key.platform == CRON_PLATFORM:
        return f"the limit of ${limit:g} for this task would be exceeded; add it again with a higher --spend"
    return f"the limit of ${limit:g} for a review would be exceeded; raise review.spend"
