"""Measure the agent: `python -m benchmarks.turn [--json] [--only NAME ...]`.

The model is a stub in its own process that answers immediately, so that only the agent is measured. Figures are medians
of CPU time. docs/reference/benchmarks.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import agent_turns, install_size, log_cost
from benchmarks.measurement import Figure, run

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "turns": agent_turns.turns,
    "prepare": agent_turns.prepared,
    "growth": agent_turns.growth,
    "first": agent_turns.first_answer,
    "log": log_cost.log_turns,
    "install": install_size.measure_install,
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
