"""The child process of a plugin: its start, its environment and its end."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hermes_plugins import Diaries, bridge, child_of, environment_of, is_running, say
from tests.runtime import until

from everthread.adapters.memory.hermes_bridge.child_process import DISCONNECT_S_MAX, PluginProcess
from everthread.domain.errors import BadConfig, StartOver, Unavailable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def diaries(tmp_path: Path) -> Diaries:
    return Diaries(tmp_path / "bridge")


async def test_a_missing_interpreter_is_reported_with_what_to_do(diaries: Diaries) -> None:
    with pytest.raises(BadConfig, match=r"can't be started.*everthread setup memory"):
        async with bridge(diaries, python="/nowhere/python"):
            pass


async def test_the_child_gets_none_of_our_environment_variables(
    diaries: Diaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "larkspur")
    async with bridge(diaries) as found:
        environment = environment_of(child_of(found))
    assert b"HERMES_HOME=" in environment
    assert b"larkspur" not in environment


async def test_a_plugin_that_hangs_is_killed_with_its_child_processes(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        await say(found, "one")
        first = child_of(found)
        diaries.ways.hang()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await say(found, "two", "s2")
        await until(lambda: not is_running(first), "it is gone")
        diaries.ways.heal()
        await again(lambda: say(found, "two", "s2"))
        assert child_of(found) != first
    assert diaries.delivered("s2") == ["two I see."]


async def test_a_process_that_closes_its_connection_is_killed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os, sys, time\nos.close(int(sys.argv[2]))\ntime.sleep(300)\n")
    python.chmod(0o700)
    child = await PluginProcess.start("hermes:diary", python, tmp_path, tmp_path / "log")
    with pytest.raises(Unavailable, match="closed its connection"):
        async with asyncio.timeout(DISCONNECT_S_MAX + 5):
            await child.request("hello", {}, 60.0)
    assert not child.is_alive
    await child.aclose()


async def test_the_child_ends_with_its_parent(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        child = found._users["ann"]._child  # noqa: SLF001
        assert child is not None
        pid = child_of(found)
        assert child._writer is not None  # noqa: SLF001
        child._writer.close()  # noqa: SLF001 - as at the exit of this process
        await until(lambda: not is_running(pid), "it is gone")


async def again(act: Any) -> None:
    """Retry like the journal until the provider accepts the delivery or asks for a restart."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return await act()
        except StartOver:
            raise
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
