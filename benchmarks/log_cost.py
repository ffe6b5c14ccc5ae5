"""Measure the cost of the log line of a turn, which a thread writes later."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.measurement import Figure
from everthread.config.schema import Settings
from everthread.domain.model import ChatType, SessionKey, SessionRef, TurnStatus
from everthread.lifecycle import CommittedTurn
from everthread.lifecycle.turns import log_turn
from everthread.log_file import log_to_file

BATCHES = 7
TURNS = 200
_ID = "01M7HK6KTHNM0AVKF77WGKYVYF"


async def log_turns(folder: Path) -> dict[str, Figure]:
    """Measure the CPU time per turn of all threads, in batches between which the log thread can write."""
    file = log_to_file(Settings(folder))
    assert file is not None
    samples: list[float] = []
    ref = SessionRef(_ID, 0, SessionKey("main", "bench", ChatType.DM, "1"), 1, "me")
    turns = [CommittedTurn(ref, number, TurnStatus.DONE, None) for number in range(TURNS)]
    try:
        for _ in range(BATCHES):
            start = time.process_time()
            for turn in turns:
                log_turn(turn, _ID)
                await asyncio.sleep(0)
            file.flush()
            samples.append((time.process_time() - start) * 1000 / TURNS)
    finally:
        file.leave()
    return {"log_cpu_ms": Figure.of(samples[1:])}
