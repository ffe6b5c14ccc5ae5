"""Backfill: deliver the sessions from before a provider was configured."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from everthread.memory.delivery import DeliveryService, check_provider
from everthread.store.cursors import BackfillCandidate
from everthread.store.unit_of_work import Store, UnitOfWork

SESSIONS_PER_TRANSACTION = 500


class Backfill:
    """Lists the sessions that a provider did not get from their beginning, and has them delivered."""

    def __init__(self, store: Store, delivery: DeliveryService) -> None:
        self._store = store
        self._delivery = delivery

    async def backfill_candidates(
        self, provider: str, sessions: Collection[str] | None = None
    ) -> tuple[BackfillCandidate, ...]:
        """Return what the provider did not get from the beginning, of these sessions or of all."""
        found: list[BackfillCandidate] = []
        after = ""
        while True:

            def read(uow: UnitOfWork, after: str = after) -> tuple[BackfillCandidate, ...]:
                check_provider(uow, provider)
                return uow.cursors.backfill_candidates(provider, after, SESSIONS_PER_TRANSACTION)

            page = await self._store.read(read)
            found += [one for one in page if sessions is None or one.session_id in sessions]
            if len(page) < SESSIONS_PER_TRANSACTION:
                return tuple(found)
            after = page[-1].session_id

    async def copy(self, provider: str, wanted: Sequence[BackfillCandidate]) -> int:
        """Deliver sessions from their beginning, as they stand now. Returns the number of sessions begun.

        Skips sessions that the provider got from their beginning, so that a second call does nothing, and sessions with
        entries that still wait for the provider.
        """
        ids = [one.session_id for one in wanted]
        pages = [ids[at : at + SESSIONS_PER_TRANSACTION] for at in range(0, len(ids), SESSIONS_PER_TRANSACTION)]
        return sum([await self._delivery.start_from_beginning(provider, page) for page in pages])

    async def copying(self, provider: str) -> tuple[int, int]:
        """Return the numbers of sessions and entries that the backfills begun so far have still to deliver."""
        return await self._store.read(lambda uow: uow.cursors.copying(provider))
