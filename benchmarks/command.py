"""The command line: how long a person waits for the first word."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.measuring import Figure
from benchmarks.stage import keys, staged

RUNS = 17
SESSIONS = 10_000


async def helped(folder: Path) -> dict[str, Figure]:
    """`everthread --help`: processor time of the child, user and system. Nothing if the command is not installed."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    samples = [child_cpu_ms([str(command), "--help"]) for _ in range(RUNS)]
    # The first run compiles what was not compiled yet.
    return {"help_cpu_ms": Figure.of(samples[1:])}


async def listed(folder: Path) -> dict[str, Figure]:
    """`everthread sessions list` on a home of 10,000 sessions, one of them with 1,000 turns; the whole process."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    async with staged(folder) as stage:
        places = keys(SESSIONS)
        await stage.fill(lambda number: places[number], (f"text {n}" for n in range(2 * SESSIONS)), per_turn=2)
        await stage.fill(lambda _: places[0], (f"text {n}" for n in range(2_000)), per_turn=2)
        asked = [str(command), "--home", str(stage.path.parent), "sessions", "list"]
        samples = [child_cpu_ms(asked) for _ in range(RUNS)]
    return {"sessions_list_10k_cpu_ms": Figure.of(samples[1:])}


def child_cpu_ms(command: list[str]) -> float:
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    # As an installed program runs: compiled once, by the first run.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = os.posix_spawn(command[0], command, environment, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    assert status == 0, f"{command} ended with status {status}"
    return (usage.ru_utime + usage.ru_stime) * 1000
