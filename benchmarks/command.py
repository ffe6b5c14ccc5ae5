"""Measure the start-up of the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.measurement import Figure
from benchmarks.store_fixture import keys, store_fixture

RUNS = 17
SESSIONS = 10_000


async def show_help(folder: Path) -> dict[str, Figure]:
    """Measure the CPU time of `everthread --help`. Return nothing if the command is not installed."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    samples = [child_cpu_ms([str(command), "--help"]) for _ in range(RUNS)]
    # The first run compiles modules to bytecode.
    return {"help_cpu_ms": Figure.of(samples[1:])}


async def list_sessions(folder: Path) -> dict[str, Figure]:
    """Measure `everthread sessions list` on a home of 10,000 sessions, one of them with 1,000 turns."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    async with store_fixture(folder) as fixture:
        session_keys = keys(SESSIONS)
        await fixture.fill(lambda number: session_keys[number], (f"text {n}" for n in range(2 * SESSIONS)), per_turn=2)
        await fixture.fill(lambda _: session_keys[0], (f"text {n}" for n in range(2_000)), per_turn=2)
        command_line = [str(command), "--home", str(fixture.path.parent), "sessions", "list"]
        samples = [child_cpu_ms(command_line) for _ in range(RUNS)]
    return {"sessions_list_10k_cpu_ms": Figure.of(samples[1:])}


def child_cpu_ms(command: list[str]) -> float:
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    # An installed program keeps its bytecode.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = os.posix_spawn(command[0], command, environment, file_actions=silent)
    _, status, usage = os.wait4(child, 0)
    assert status == 0, f"{command} ended with status {status}"
    return (usage.ru_utime + usage.ru_stime) * 1000
