"""Run the benchmarks: `python -m benchmarks.core [--json] [--dir FOLDER] [--only NAME ...]`.

Figures are medians of CPU time, so that other programs on the machine disturb them little.
docs/reference/benchmarks.md explains each figure.
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
from typing import Any

import apsw

from benchmarks import boundaries, command, corpus, storage, store_turns
from benchmarks.measurement import Figure

STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "turns": store_turns.single_writer,
    "writers": store_turns.concurrent_writers,
    "boundaries": boundaries.cross_boundaries,
    "branch": boundaries.branch_long_session,
    "bindings": boundaries.look_up_bindings,
    "storage": storage.store_corpus,
    "help": command.show_help,
    "deliveries": store_turns.deliver_backlog,
}

# Upper limits. Figures without a limit are for context.
TARGETS: dict[str, float] = {
    "commit_turn_cpu_ms": 0.6,
    "fsyncs_per_turn_100_writers": 0.2,
    "cross_cpu_ms": 0.5,
    "branch_100k_ms": 1.0,
    "binding_lookup_ms": 0.1,
    "search_newest_ms": 2.0,
    "search_ranked_ms": 40.0,
    "recall_ms": 10.0,
    "disk_ratio": 2.5,
    "help_cpu_ms": 100.0,
}
BINDING_GROWTH_MAX = 1.5


async def measure(folder: Path, names: list[str], *, silent: bool) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for number, name in enumerate(names, 1):
        start = time.monotonic()
        figures |= await STEPS[name](folder)
        if not silent:
            print(f"[{number}/{len(names)}] {name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return figures


def as_json(figures: dict[str, Figure]) -> dict[str, Any]:
    """Return the figures by name (dotted names as objects) with their spread and the versions used."""
    result: dict[str, Any] = {name: None for name in TARGETS}
    for name, figure in figures.items():
        whole, _, part = name.partition(".")
        if part:
            result[whole] = (result.get(whole) or {}) | {part: round(figure.value, 4)}
        else:
            result[name] = round(figure.value, 4)
    result["spread"] = {name: [round(f.low, 4), round(f.high, 4)] for name, f in figures.items() if f.low < f.high}
    result["corpus"] = corpus.NAME
    result["python"] = platform.python_version()
    result["sqlite"] = apsw.sqlite_lib_version()
    if result["help_cpu_ms"] is None:
        result["note"] = "help_cpu_ms: the everthread command is not installed beside this Python, or was not measured"
    return result


def as_table(figures: dict[str, Figure], names: list[str]) -> str:
    lines = [f"{'figure':<36}{'median':>10}{'lowest':>10}{'highest':>10}{'target':>10}"]
    for name, figure in figures.items():
        target = TARGETS.get(name.partition(".")[0])
        verdict = "" if target is None else "  pass" if figure.value <= target else "  MISS"
        wanted = "" if target is None else f"{target:g}"
        lines.append(
            f"{name:<36}{figure.value:>10.3f}{figure.low:>10.3f}{figure.high:>10.3f}{wanted:>10}{verdict}".rstrip()
        )
    lookups = [figure.value for name, figure in figures.items() if name.startswith("binding_lookup_ms.")]
    if lookups:
        growth = max(lookups) / min(lookups)
        verdict = "pass" if growth <= BINDING_GROWTH_MAX else "MISS"
        lines.append(f"{'binding_lookup_ms, most / least':<36}{growth:>10.3f}{BINDING_GROWTH_MAX:>30g}  {verdict}")
    if "help" in names and "help_cpu_ms" not in figures:
        lines.append("help_cpu_ms: not measured; the everthread command is not installed beside this Python")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description="Measure the core.")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="folder for the stores; use a real disk, not a RAM disk",
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(STEPS), default=list(STEPS), help="run only these measurements"
    )
    options = parser.parse_args()
    figures = asyncio.run(measure(options.dir, options.only, silent=options.json))
    print(json.dumps(as_json(figures), indent=2) if options.json else as_table(figures, options.only))


if __name__ == "__main__":
    main()
