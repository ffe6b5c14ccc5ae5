"""Release turns that this process claimed and cannot finish, so that any process can resume them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress

from msgspec import Struct, field

from everthread.agent.turn_commit import retry_while_busy
from everthread.agent.turn_outcome import claim_fields
from everthread.agent.turn_state import RunningTurn
from everthread.concurrency import wait_until_done
from everthread.domain.backoff import Backoff
from everthread.domain.errors import EverthreadError, Fenced, StoreError
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.ports.clock import Clock

log = logging.getLogger("everthread.agent")

SETTLE_S_MAX = 1.0
RETRY = Backoff(first_s=1.0, max_s=60.0)


class TurnReleaser(Struct, frozen=True):
    """Release turns, retrying while the store is unavailable.

    No other process may take over a turn while the one that claimed it lives: a turn that is never released never ends.
    """

    lifecycle: Lifecycle
    clock: Clock
    _retries: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def claim_or_release(self, claiming: Awaitable[TurnClaim | None]) -> TurnClaim | None:
        """Await a claim; release it if the caller was cancelled meanwhile."""
        task = asyncio.ensure_future(claiming)
        cancelled = await wait_until_done(task)
        if cancelled is None:
            return task.result()
        with suppress(EverthreadError):
            if (claim := task.result()) is not None:
                await asyncio.shield(self.release(claim))
        raise cancelled

    async def release(self, claim: TurnClaim, turn: RunningTurn | None = None) -> None:
        """Release a turn and settle its spending, or retry in the background."""
        try:
            await retry_while_busy(self.clock, lambda: self.lifecycle.abandon_turn(claim))
        except Fenced as error:
            log.warning(
                "could not release turn %s; recovery resumes it: %s", claim.turn_id, error, extra=claim_fields(claim)
            )
        except StoreError as error:
            log.warning("could not release turn %s; retrying: %s", claim.turn_id, error, extra=claim_fields(claim))
            self._retry(claim)
        else:
            if turn is not None:
                await self.settle_spend(turn)

    async def settle_spend(self, turn: RunningTurn) -> None:
        """Record the cost of a turn that is not committed here; its reservations would count for a day otherwise."""
        if turn.task is not None:
            await asyncio.wait({turn.task}, timeout=SETTLE_S_MAX)
        spent, claim = tuple(turn.progress.spent), turn.claim
        try:
            if spent:
                await self.lifecycle.settle_spend(claim.ref, claim.turn_id, spent)
        except StoreError as error:
            log.warning("could not settle the cost of turn %s: %s", claim.turn_id, error)

    async def aclose(self) -> None:
        """Cancel the retries: once this process has ended, others may take over its turns."""
        for task in self._retries:
            task.cancel()
        if self._retries:
            await asyncio.wait(self._retries)

    def _retry(self, claim: TurnClaim) -> None:
        task = asyncio.ensure_future(self._retry_until_released(claim))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry_until_released(self, claim: TurnClaim) -> None:
        for delay_s in RETRY.delays():
            await self.clock.sleep(delay_s)
            try:
                await self.lifecycle.abandon_turn(claim)
            except Fenced:
                return
            except StoreError as error:
                log.warning("could not release turn %s yet; retrying: %s", claim.turn_id, error)
            else:
                return
