"""Measure the terminal: `python -m benchmarks.terminal [--json] [--only NAME ...]`.

Start-up is measured in CPU time of the whole program, keystrokes in wall-clock time. The model is a stub in its own
process. docs/reference/benchmarks.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import command, terminal_latency
from benchmarks.measurement import Figure, run

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "help": command.show_help,
    "prompt": terminal_latency.first_prompt,
    "keys": terminal_latency.keystrokes,
    "list": command.list_sessions,
}

TARGETS: dict[str, float] = {
    "help_cpu_ms": 100.0,
    "first_prompt_cpu_ms": 350.0,
    "keystroke_ms_p99": 30.0,
    "sessions_list_10k_cpu_ms": 150.0,
}

if __name__ == "__main__":
    run("benchmarks.terminal", __doc__, STEPS, TARGETS)
