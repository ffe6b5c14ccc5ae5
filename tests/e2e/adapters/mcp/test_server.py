"""One MCP server across its connections: refreshed tools, timeouts and restarts."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.mcp_servers import (
    SECRET,
    call,
    failure,
    is_gone,
    misbehaving,
    running,
    with_sdk,
)

from everthread.testing.contracts.store.fixtures import StillClock


async def test_a_changed_list_of_tools_is_announced_and_read_on_refresh() -> None:
    async with running(a=with_sdk()) as servers:
        before = servers.tools()
        await call(servers, "a__change")
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        assert servers.changed
        assert servers.tools() is before
        assert await servers.refresh()
        assert not servers.changed
        assert await call(servers, "a__brand_new", text="!") == "brand_new: !"
        assert not await servers.refresh()


async def test_a_server_that_starts_slowly_delays_nothing_and_is_available_later() -> None:
    async with running(start_s=0.2, a=misbehaving("slow", "1")) as servers:
        assert "no answer within" in servers.problems()["a"]
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        began = time.monotonic()
        assert not await servers.refresh(0.1, open_s=10.0)
        assert time.monotonic() - began < 0.5
        assert not servers.changed, "a change was reported during the start"
        for _ in range(200):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        assert await servers.refresh(0.1, open_s=10.0)
        assert not servers.changed
        assert await call(servers, "a__echo", text="late") == "late"


async def test_a_change_is_not_missed_when_a_refresh_times_out() -> None:
    async with running(a=with_sdk()) as servers:
        await call(servers, "a__change")
        for _ in range(100):
            if servers.changed:
                break
            await asyncio.sleep(0.02)
        asking = asyncio.ensure_future(servers.refresh())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not servers.changed, "a change is still reported during the refresh"
        asking.cancel()
        await asyncio.wait({asking})
        assert servers.changed
        assert await servers.refresh()


async def test_a_call_that_is_not_answered_fails_in_time_and_the_next_one_works() -> None:
    async with running(a=misbehaving(timeout_s=0.5)) as servers:
        began = time.monotonic()
        assert await failure(servers, "a__hang") == "the MCP server a has not answered within 0.5 s"
        assert time.monotonic() - began < 2.0
        pid = await call(servers, "a__pid")
        await failure(servers, "a__hang")
        assert await call(servers, "a__pid") == pid


async def test_a_server_that_dies_is_restarted_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(a=misbehaving(env={"KEY": SECRET}), b=misbehaving()) as servers:
        first = await call(servers, "a__pid")
        waiting = asyncio.ensure_future(failure(servers, "a__hang"))
        await asyncio.sleep(0.1)
        why = "it exited with status 3: about to die of ***"
        assert await failure(servers, "a__die") == f"the MCP server a is not running: {why}; the rest works"
        assert why in await waiting
        assert servers.problems() == {"a": why}
        assert await call(servers, "b__echo", text="fine") == "fine"
        both = await asyncio.gather(call(servers, "a__pid"), call(servers, "a__pid"))
        assert both[0] == both[1] != first
        assert servers.problems() == {}
        assert await is_gone(int(first))
    assert "about to die of ***" in caplog.text
    assert SECRET not in caplog.text


async def test_a_server_that_stays_down_is_retried_with_backoff(tmp_path: Path) -> None:
    clock = StillClock()
    async with running(clock, a=misbehaving("once", str(tmp_path / "marker"))) as servers:
        assert "it exited with status 3" in await failure(servers, "a__die")
        assert "gone for good; the rest works" in await failure(servers, "a__echo")
        assert "gone for good (next try in 1 s)" in await failure(servers, "a__echo")
        clock.time += 1.0
        assert "gone for good; the rest works" in await failure(servers, "a__echo")
        assert "gone for good (next try in 2 s)" in await failure(servers, "a__echo")
        assert len(servers.tools()) == 8
        (tmp_path / "marker").unlink()
        assert not await servers.refresh()
        assert await call(servers, "a__echo", text="back") == "back"
