"""Log failed authentications, and slow down the addresses that repeat them.

A token has 256 random bits, so guessing needs no defence. The delay keeps a broken or hostile client from filling the
log and from taking CPU time. A request with a valid token is never delayed: others at its address, behind one proxy for
example, may fail without locking it out. Everything here is bounded: addresses, waiting requests, delays and lines.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct

from everthread.ports.clock import Clock
from everthread.web.client_address import slowed_network
from everthread.web.errors import HttpError

# The name and the text are part of the documented fail2ban filter.
log = logging.getLogger("everthread.web")

FREE = 3
"""Failures of one address that are answered at once."""
FIRST_DELAY_S = 0.25
DELAY_S_MAX = 8.0
FORGET_S = 900.0
"""A failure is forgotten after this time without another one."""
ADDRESSES_MAX = 4096
WAITING_MAX = 256
WAITING_PER_ADDRESS_MAX = 4
LINES_PER_MINUTE = 60
MINUTE_S = 60.0


class _Record(Struct):
    failures: int = 0
    at: float = 0.0
    answered_at: float = 0.0
    """The time at which the last of its waiting requests is answered."""
    waiting: int = 0


class AuthFailures:
    """Failed authentications by address, in memory only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        """Least recently failed first."""
        self.waiting = 0
        self._stopping = asyncio.Event()
        self._minute_at = float("-inf")
        self._lines = self._unlogged = 0
        self.count = 0

    @property
    def addresses(self) -> int:
        """The number of addresses with failures."""
        return len(self._records)

    async def record(self, address: str, reason: str) -> None:
        """Log a failure, then wait as long as this address must. Raise a 429 instead if too many requests wait."""
        self.count += 1
        now = self._clock.elapsed()
        record = self._record(slowed_network(address), now)
        delay_s = self._delay_s(record, now)
        if delay_s and (self.waiting >= WAITING_MAX or record.waiting >= WAITING_PER_ADDRESS_MAX):
            self._unlogged += 1
            raise HttpError(
                429,
                "Too many failed authentications. Try again later.",
                "too_many_failures",
                {"Retry-After": str(int(delay_s) + 1), "Connection": "close"},
            )
        record.failures += 1
        record.at, record.answered_at = now, now + delay_s
        self._log(address, reason, now)
        if delay_s:
            await self._wait(record, delay_s)

    def succeed(self, address: str) -> None:
        """Forget the failures of an address."""
        self._records.pop(slowed_network(address), None)

    def stop(self) -> None:
        """End all waits."""
        self._stopping.set()

    def _record(self, network: str, now: float) -> _Record:
        """Return the record of an address, as the most recent one."""
        record = self._records.pop(network, None)
        if record is None or (now - record.at > FORGET_S and not record.waiting):
            record = _Record()
        self._records[network] = record
        if len(self._records) > ADDRESSES_MAX:
            del self._records[next(iter(self._records))]
        return record

    def _delay_s(self, record: _Record, now: float) -> float:
        """Return the delay of the next failure. The waiting requests of one address are answered one after another."""
        if record.failures < FREE:
            return 0.0
        own_s = min(FIRST_DELAY_S * 2.0 ** min(record.failures - FREE, 16), DELAY_S_MAX)
        return max(record.answered_at - now, 0.0) + own_s

    async def _wait(self, record: _Record, delay_s: float) -> None:
        record.waiting += 1
        self.waiting += 1
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            pass
        finally:
            record.waiting -= 1
            self.waiting -= 1

    def _log(self, address: str, reason: str, now: float) -> None:
        if now - self._minute_at >= MINUTE_S:
            if self._unlogged:
                log.warning("%d failed authentications were not logged: too many at once", self._unlogged)
            self._minute_at, self._lines, self._unlogged = now, 0, 0
        if self._lines >= LINES_PER_MINUTE:
            self._unlogged += 1
            return
        self._lines += 1
        log.warning("failed authentication from %s: %s", address, reason)
