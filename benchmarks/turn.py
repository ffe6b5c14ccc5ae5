"""Measure the agent: `python -m benchmarks.turn [--json] [--only NAME ...]`.

The model is a stub in a process of its own that answers at once, so that nothing but our own work is counted. Figures
are medians of processor time. docs/reference/benchmarks.md says what each of them means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import answering, installing
from benchmarks.measuring import Figure

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "turns": answering.turns,
    "prepare": answering.prepared,
    "growth": answering.growth,
    "first": answering.first_answer,
    "install": installing.installed,
}

TARGETS: dict[str, float] = {
    "turn_cpu_ms": 3.0,
    "turn_cpu_ms_1000": 5.0,
    "prepare_cpu_ms": 2.0,
    "prepare_kb": 50.0,
    "growth_kb_per_turn": 20.0,
    "first_answer_cpu_ms": 600.0,
    "install_mb": 60.0,
    "install_packages": 25.0,
}


async def measured(names: list[str], *, silent: bool) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for number, name in enumerate(names, 1):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="everthread-bench-") as folder:
            figures |= await STEPS[name](Path(folder))
        if not silent:
            print(f"[{number}/{len(names)}] {name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return figures


def as_json(figures: dict[str, Figure]) -> dict[str, object]:
    result: dict[str, object] = {name: None for name in TARGETS}
    result |= {name: round(figure.value, 4) for name, figure in figures.items()}
    result["spread"] = {name: [round(f.low, 4), round(f.high, 4)] for name, f in figures.items() if f.low < f.high}
    result["python"] = platform.python_version()
    return result


def as_table(figures: dict[str, Figure]) -> str:
    lines = [f"{'figure':<28}{'median':>10}{'lowest':>10}{'highest':>10}{'target':>10}"]
    for name, figure in figures.items():
        target = f"{TARGETS[name]:g}" if name in TARGETS else ""
        lines.append(f"{name:<28}{figure.value:>10.3f}{figure.low:>10.3f}{figure.high:>10.3f}{target:>10}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="NAME")
    arguments = parser.parse_args()
    figures = asyncio.run(measured(arguments.only, silent=arguments.json))
    print(json.dumps(as_json(figures), indent=2) if arguments.json else as_table(figures))


if __name__ == "__main__":
    main()
