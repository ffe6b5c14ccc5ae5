"""A process under a wrong clock is killed; the next process, under another clock, does what waits."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_worker import OWNER

from everthread.adapters.sqlite.store import SqliteStore

ROOT = Path(__file__).resolve().parents[2]
YEAR_S = 366 * 86_400.0
MONTH_S = 30 * 86_400.0
PATIENCE_S = 12.0


async def start(home: Path, ahead_s: float, *, down: bool) -> Process:
    orders = json.dumps({"home": str(home), "ahead_s": ahead_s, "down": down})
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.wrong_clock_worker", orders, cwd=ROOT, stdout=PIPE
    )


async def said(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return json.loads(await process.stdout.readline())


@pytest.mark.parametrize(("first_s", "then_s"), [(YEAR_S, 0.0), (0.0, -MONTH_S), (-MONTH_S, 0.0), (0.0, YEAR_S)])
async def test_the_next_process_expires_and_delivers_whatever_the_clock_was(
    tmp_path: Path, first_s: float, then_s: float
) -> None:
    first = await start(tmp_path, first_s, down=True)
    assert await said(first) == {"may_offer": False}
    first.kill()
    await first.wait()
    second = await start(tmp_path, then_s, down=False)
    try:
        assert await said(second) == {"may_offer": True}
        assert await second.wait() == 0
    finally:
        if second.returncode is None:
            second.kill()
            await second.wait()
    store = await SqliteStore.open(tmp_path / "everthread.db")
    (session,) = [one for one in await store.read(lambda uow: uow.sessions.of_owner(OWNER)) if one.last_turn]
    await store.aclose()
    assert session.end_reason == "idle"
