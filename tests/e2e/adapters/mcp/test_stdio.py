"""Child processes of MCP servers."""

import asyncio
import os
import time
from pathlib import Path

from tests.mcp_servers import (
    START_S,
    call,
    failure,
    is_gone,
    misbehaving,
    running,
)

from everthread.adapters.mcp.servers import McpServers
from everthread.testing.contracts.lanes import RealClock


async def test_no_process_outlives_the_close(tmp_path: Path) -> None:
    family = tmp_path / "pid"
    async with running(
        a=misbehaving(), stubborn=misbehaving("stubborn"), family=misbehaving("family", str(family))
    ) as servers:
        pids = [int(await call(servers, f"{name}__pid")) for name in ("a", "stubborn", "family")]
        pids.append(int(family.read_text()))
        began = time.monotonic()
        await servers.aclose()
        assert time.monotonic() - began < 5.0
        assert all([await is_gone(pid) for pid in pids])
        assert not await servers.refresh()
        assert "closed" in await failure(servers, "a__echo")


async def test_a_server_that_is_still_starting_is_stopped_on_close() -> None:
    servers = McpServers({"a": misbehaving("silent")}, RealClock(), environ=os.environ)
    starting = asyncio.ensure_future(servers.start(START_S))
    children: list[int] = []
    for _ in range(500):
        if children := _children():
            break
        await asyncio.sleep(0.02)
    await servers.aclose()
    await asyncio.wait_for(starting, 2.0)
    assert children
    assert all([await is_gone(pid) for pid in children])


async def test_an_event_loop_that_ends_without_a_close_leaves_no_process() -> None:
    def leave() -> int:
        async def begin() -> int:
            servers = McpServers({"a": misbehaving("stubborn")}, RealClock(), environ=os.environ)
            await servers.start(START_S)
            return int(await call(servers, "a__pid"))

        return asyncio.run(begin())

    assert await is_gone(await asyncio.to_thread(leave))


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
