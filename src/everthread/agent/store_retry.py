"""Retry writes that must not be lost, in the background, while the store is unavailable. Failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from everthread.agent.turn_commit import retry_while_busy
from everthread.concurrency import cancel_tasks
from everthread.domain.backoff import Backoff
from everthread.domain.errors import StoreError
from everthread.ports.clock import Clock
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.agent")

RETRY = Backoff(first_s=1.0, max_s=60.0)


class StoreRetries:
    """Writes of one component that wait for the store."""

    def __init__(self, store: Store, clock: Clock, source: str) -> None:
        """`source` names the component in logs and incidents."""
        self._store = store
        self._clock = clock
        self._source = source
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Write now, or retry in the background. Returns false if the write has not succeeded yet.

        `what` completes "could not". The work may run more than once.
        """
        try:
            await retry_while_busy(self._clock, work)
        except StoreError as error:
            log.warning("%s: could not %s; retrying: %s", self._source, what, error)
            task = asyncio.ensure_future(self._retry(what, work, str(error)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return False
        return True

    async def aclose(self) -> None:
        """Cancel the retries. A later process recovers what was not written."""
        if self._tasks:
            log.warning("%s: stopped before %d writes to the store succeeded", self._source, len(self._tasks))
        await cancel_tasks(self._tasks)

    async def _retry(self, what: str, work: Callable[[], Awaitable[object]], problem: str) -> None:
        since = self._clock.now()
        for delay_s in RETRY.delays():
            await self._clock.sleep(delay_s)
            try:
                await work()
                late_s = self._clock.now() - since
                incident = Incident(
                    self._clock.now(), self._source, None, f"could not {what} for {late_s:.0f} s: {problem}"
                )
                await self._store.write(lambda uow, incident=incident: uow.incidents.add(incident))
            except StoreError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s: could not %s yet; retrying: %s", self._source, what, error)
            except Exception:
                log.exception("%s: could not %s; given up", self._source, what)
                return
            else:
                log.info("%s: succeeded after %.0f s: %s", self._source, late_s, what)
                return
