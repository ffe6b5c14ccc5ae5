"""Lanes: a clock that is set back, the end of an outage, and entries that can't be read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, QUICK, TELEGRAM, AsyncDiary, Call, CoreFixture, until

from everthread.domain.errors import Unavailable
from everthread.domain.events import EntryKind
from everthread.domain.model import SessionKey
from everthread.memory.delivery_results import Limits

HOUR_S = 3600.0


async def down(call: Call) -> None:
    raise Unavailable("diary", "down")


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(backoff_s=0.2, backoff_s_max=0.4, breaker_failures=99), id="back-off"),
        pytest.param(Limits(backoff_s=0.01, backoff_s_max=0.02, breaker_failures=1, breaker_s=0.4), id="breaker"),
    ],
)
async def test_queued_entries_are_delivered_after_the_clock_is_set_back(tmp_path: Path, limits: Limits) -> None:
    diary = AsyncDiary()
    diary.before = down
    async with CoreFixture(tmp_path, diary, limits=limits) as core:
        await core.turn(CLI, "hello")
        await until(lambda: diary.book.begun)
        await core.reported("memory:diary", "down")
        diary.before = None
        core.clock.ahead_s -= HOUR_S
        await core.settled()
        assert [call.text for call in diary.book.of("sync_turn")] == ["hello"]
        (status,) = await core.memory.journal.status()
        assert status.breaker_open_until is None


async def test_a_breaker_pause_longer_than_an_entrys_longest_wait_is_kept(tmp_path: Path) -> None:
    """The breaker may be set to pause for longer than any single entry waits."""
    diary = AsyncDiary()
    diary.before = down
    limits = Limits(backoff_s=0.001, backoff_s_max=0.002, breaker_failures=1, breaker_s=60.0)
    async with CoreFixture(tmp_path, diary, limits=limits) as core:
        await core.turn(CLI, "hello")
        await core.reported("memory:diary", "down")
        tried = len(diary.book.begun)
        for _ in range(3):
            await core.turn(CLI, "more")
            core.lanes.wake("journal:diary")
            await until(lambda: True)
        (status,) = await core.memory.journal.status()
        assert status.breaker_open_until is not None
        assert len(diary.book.begun) == tried
        assert limits.backoff_s_max < QUICK.backoff_s_max < limits.breaker_s


async def test_after_an_outage_one_lane_tests_whether_the_provider_is_back(tmp_path: Path) -> None:
    diary = AsyncDiary()
    diary.before = down
    limits = Limits(backoff_s=0.001, backoff_s_max=0.002, breaker_failures=1, breaker_s=60.0)
    keys = [CLI, TELEGRAM, *(SessionKey.parse(f"agent:main:telegram:dm:{chat}") for chat in (43, 44))]
    async with CoreFixture(tmp_path, diary, limits=limits) as core:

        def end_pause() -> None:
            core.clock.ahead_s += limits.breaker_s + 1.0
            core.lanes.wake("journal:diary")

        await core.turn(CLI, "first")
        await core.reported("memory:diary", "down")
        for key in keys:
            await core.turn(key, "hello")
        for _ in range(2):
            tried = len(diary.book.begun)
            end_pause()
            await until(lambda tried=tried: len(diary.book.begun) > tried)
            await core.memory.journal.idle()
            assert len(diary.book.begun) == tried + 1
        diary.before = None
        end_pause()
        await core.settled()
        assert [call.text for call in diary.book.of("sync_turn")].count("hello") == len(keys)


async def test_an_unreadable_lane_is_reported_and_delays_no_other(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        broken = (await core.turn(CLI, "first")).ref.session_id
        await core.settled()

        def damage(uow: object) -> None:
            uow.log._execute("DELETE FROM messages")  # type: ignore[attr-defined] # noqa: SLF001 - damage on purpose
            uow.log._execute("DELETE FROM turns")  # type: ignore[attr-defined] # noqa: SLF001

        await core.store.write(damage)
        await core.memory.journal.replay("diary", broken)
        await core.reported("memory:diary", "can't be read")
        other = (await core.turn(TELEGRAM, "second")).ref.session_id
        await until(lambda: "second" in [call.text for call in diary.book.of("sync_turn", other)])


async def test_a_delivery_stays_recorded_if_the_next_entry_can_not_be_read(tmp_path: Path) -> None:
    diary, gate = AsyncDiary(), asyncio.Event()

    async def wait(call: Call) -> None:
        await gate.wait()

    diary.before = wait
    async with CoreFixture(tmp_path, diary) as core:
        session = (await core.turn(CLI, "first")).ref.session_id
        await core.turn(CLI, "second")
        await until(lambda: diary.book.begun)

        def damage(uow: object) -> None:
            uow.log._execute("DELETE FROM turns WHERE number = 2")  # type: ignore[attr-defined] # noqa: SLF001

        await core.store.write(damage)
        diary.before = None
        gate.set()
        await core.reported("memory:diary", "can't be read")
        cursor = await core.store.read(lambda uow: uow.cursors.get("diary", session))
        assert cursor is not None
        first = await core.store.read(lambda uow: uow.log.of_kind(session, EntryKind.TURN)[0])
        assert cursor.seq == first.seq
        assert diary.book.told(session) == ["switch", "first"]


async def test_the_oldest_lanes_are_found_without_reading_all(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:

        def plans(uow: Any) -> list[str]:
            execute = uow.cursors._execute  # noqa: SLF001 - the plan of a query is nobody's business but the database's
            sql = "SELECT due_at, session_id FROM {} WHERE provider = ? AND due_at <= ? ORDER BY due_at LIMIT ?"
            rows = [
                row
                for table in ("cursors", "redeliveries")
                for row in execute(f"EXPLAIN QUERY PLAN {sql}".format(table), ("p", 1, 9))
            ]
            return [row[3] for row in rows]

        found = await core.store.read(plans)
        assert len(found) == 2
        assert all("USING" in plan and "INDEX" in plan and "(provider=?" in plan for plan in found)
