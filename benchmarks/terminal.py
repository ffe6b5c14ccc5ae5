"""Measure the terminal: `python -m benchmarks.terminal [--json] [--only NAME ...]`.

Processor time of the whole program where nothing is waited for; time on the clock for keys. The model is a stub in a
process of its own. docs/reference/benchmarks.md says what each figure means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import command, typing
from benchmarks.measuring import Figure, run

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "help": command.helped,
    "prompt": typing.first_prompt,
    "keys": typing.keystrokes,
    "list": command.listed,
}

TARGETS: dict[str, float] = {
    "help_cpu_ms": 100.0,
    "first_prompt_cpu_ms": 350.0,
    "keystroke_ms_p99": 30.0,
    "sessions_list_10k_cpu_ms": 150.0,
}

if __name__ == "__main__":
    run("benchmarks.terminal", __doc__, STEPS, TARGETS)
