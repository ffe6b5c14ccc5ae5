"""Measure the agent: `python -m benchmarks.turn [--json] [--only NAME ...]`.

The model is a stub in a process of its own that answers at once, so that nothing but our own work is counted. Figures
are medians of processor time. docs/reference/benchmarks.md says what each of them means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import answering, installing, logged
from benchmarks.measuring import Figure, run

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "turns": answering.turns,
    "prepare": answering.prepared,
    "growth": answering.growth,
    "first": answering.first_answer,
    "log": logged.logged,
    "install": installing.installed,
}

TARGETS: dict[str, float] = {
    "turn_cpu_ms": 3.0,
    "turn_cpu_ms_1000": 5.0,
    "prepare_cpu_ms": 2.0,
    "prepare_kb": 50.0,
    "growth_kb_per_turn": 20.0,
    "first_answer_cpu_ms": 600.0,
    "log_cpu_ms": 0.05,
    "install_mb": 60.0,
    "install_packages": 25.0,
}

if __name__ == "__main__":
    run("benchmarks.turn", __doc__, STEPS, TARGETS)
