"""Writes that wait for the store are repeated, and reported."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.runtime import MovableClock

from everthread.adapters.sqlite.store import SqliteStore
from everthread.agent.store_retry import StoreRetries
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing.contracts.lanes import BusyStore

WRITTEN = Incident(1.0, "work", None, "written")


class HastyClock(MovableClock):
    """A clock on which pauses take a hundredth of their time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


def write(uow: UnitOfWork) -> None:
    uow.incidents.add(WRITTEN)


async def test_a_write_is_repeated_until_the_store_takes_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    real = await SqliteStore.open(tmp_path / "everthread.db")
    store = BusyStore(real)
    retries = StoreRetries(store, HastyClock(), "schedule")
    assert await retries.run("write it down", lambda: store.write(write))
    store.busy = True
    with caplog.at_level(logging.WARNING):
        assert not await retries.run("write it down", lambda: store.write(write))
    assert "schedule: could not write it down; retrying" in caplog.text
    store.busy = False
    found: list[Incident] = []

    async def look() -> None:
        while len(found) < 3:
            found[:] = await real.read(lambda uow: uow.incidents.newest(10))
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 8)
    assert [incident.source for incident in found] == ["schedule", "work", "work"]
    assert "could not write it down" in found[0].text
    await retries.aclose()
    await real.aclose()


async def test_closing_gives_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    real = await SqliteStore.open(tmp_path / "everthread.db")
    store = BusyStore(real)
    store.busy = True
    retries = StoreRetries(store, HastyClock(), "schedule")
    assert not await retries.run("write it down", lambda: store.write(write))
    await retries.aclose()
    assert "stopped before 1 writes" in caplog.text
    store.busy = False
    await asyncio.sleep(0.05)
    assert await real.read(lambda uow: uow.incidents.newest(10)) == ()
    await real.aclose()
