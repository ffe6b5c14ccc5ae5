"""Run seeded schedules of operations and faults, and check the result of each.

    python -m tests.simulator --seeds 2000
    python -m tests.simulator --agents           with agents: compression, review, delegated work
    python -m tests.simulator --seed 4711        one schedule, with its trace

A schedule is a list of steps made from the seed. If it ends in a violation, it is shrunk: steps are removed while the
violation remains. The output is the seed and the remaining steps.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from tests.simulator.agent_simulation import MORE_ACTIONS, AgentSimulation, make_agent_schedule
from tests.simulator.coverage import table
from tests.simulator.scenario import CORE_ACTIONS, Step, extend_schedule, make_schedule
from tests.simulator.simulation import Simulation


@dataclass
class Report:
    """Result of a run."""

    schedules: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    violations: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def add(self, seed: int, counts: dict[str, Counter[str]], violation: str | None) -> None:
        self.schedules += 1
        for name, counted in counts.items():
            self.counts.setdefault(name, Counter()).update(counted)
        if violation is not None:
            self.violations.append((seed, violation))

    def as_dict(self) -> dict[str, object]:
        totals = {name: dict(sorted(counted.items())) for name, counted in sorted(self.counts.items())}
        return {"schedules": self.schedules, **totals, "violations": len(self.violations)}


VERSION = 2
"""Newest version of histories. A seed has one history of each version; regression tests name the version they need."""


def schedule_of(seed: int, *, agents: bool = False, version: int = VERSION) -> list[Step]:
    schedule = (make_agent_schedule if agents else make_schedule)(random.Random(seed))
    more = MORE_ACTIONS if agents else CORE_ACTIONS
    return extend_schedule(schedule, random.Random(seed ^ 0xE87E), more) if version > 1 else schedule


def made(seed: int, schedule: list[Step] | None = None, *, agents: bool = False, version: int = VERSION) -> Simulation:
    """Create the simulation of a seed, with or without agents, with its own schedule or a shorter one."""
    schedule = schedule_of(seed, agents=agents, version=version) if schedule is None else schedule
    return (AgentSimulation if agents else Simulation)(seed, schedule, extended=version > 1)


def run_seed(
    seed: int, *, agents: bool = False, digest: bool = False, version: int = VERSION
) -> tuple[int, dict[str, Counter[str]], str | None]:
    """Run a seed. With `digest`, the counts include a hash of the history; equal sums mean equal histories."""
    fixture = made(seed, agents=agents, version=version)
    # A schedule leaves little garbage, and collecting it repeatedly costs much of the run time.
    gc.disable()
    try:
        violation = fixture.run()
    finally:
        gc.enable()
    if digest:
        history = repr(
            (seed, violation, fixture.trace, [sorted(counted.items()) for counted in fixture.counts.values()])
        )
        fixture.counts["digest"] = Counter({"sum": int(hashlib.sha256(history.encode()).hexdigest()[:12], 16)})
    return seed, fixture.counts, violation


def shrink(
    seed: int, schedule: list[Step], tries: int = 400, *, agents: bool = False, version: int = VERSION
) -> tuple[list[Step], str]:
    """Remove steps, many at first, while the schedule still ends in a violation."""
    violation = made(seed, schedule, agents=agents, version=version).run() or "not seen again"
    size = max(len(schedule) // 2, 1)
    while tries > 0:
        removed = False
        for start in range(0, len(schedule), size):
            shorter = schedule[:start] + schedule[start + size :]
            tries -= 1
            if shorter and (found := made(seed, shorter, agents=agents, version=version).run()) is not None:
                schedule, violation, removed = shorter, found, True
                break
            if tries <= 0:
                break
        if not removed:
            if size == 1:
                break
            size = max(size // 2, 1)
    return schedule, violation


def run_seeds(
    first: int,
    count: int,
    workers: int,
    *,
    stop_at: int = 5,
    agents: bool = False,
    digest: bool = False,
    version: int = VERSION,
) -> Report:
    """Run many seeds in parallel, with progress on a terminal."""
    report = Report()
    context = multiprocessing.get_context("spawn")
    shown = 0.0
    run = partial(run_seed, agents=agents, digest=digest, version=version)
    with context.Pool(workers, initializer=_quiet) as pool:
        for seed, counts, violation in pool.imap_unordered(run, range(first, first + count), chunksize=8):
            report.add(seed, counts, violation)
            if sys.stderr.isatty() and time.monotonic() - shown > 0.5:
                shown = time.monotonic()
                print(f"\r{report.schedules}/{count} schedules", end="", file=sys.stderr, flush=True)
            if len(report.violations) >= stop_at:
                pool.terminate()
                break
    if shown:
        print(file=sys.stderr)
    return report


def explain(seed: int, *, agents: bool = False, version: int = VERSION) -> str:
    """Report the seed's violation with the shortest failing schedule and its trace."""
    schedule, violation = shrink(
        seed, made(seed, agents=agents, version=version).schedule, agents=agents, version=version
    )
    fixture = made(seed, schedule, agents=agents, version=version)
    fixture.run()
    lines = [f"seed {seed}: {violation}", "steps:", *(f"  {step}" for step in schedule), "trace:"]
    return "\n".join([*lines, *(f"  {line}" for line in fixture.trace[-80:])])


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Run seeded schedules and check what must hold.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many schedules to run (default 2000)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seed", type=int, help="run this one schedule and show its trace")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--agents", action="store_true", help="with agents: compression, review, handed-over work")
    parser.add_argument("--digest", action="store_true", help="print a digest of all histories, to compare versions")
    parser.add_argument("--coverage", action="store_true", help="print how often each boundary met each fault")
    parser.add_argument("--version", type=int, default=VERSION, help=f"version of the histories (default {VERSION})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    _quiet()
    kind = {"agents": options.agents, "version": options.version}
    if options.seed is not None:
        fixture = made(options.seed, **kind)
        violation = fixture.run()
        print("\n".join(fixture.trace))
        print(explain(options.seed, **kind) if violation else "no violation")
        return 1 if violation else 0
    report = run_seeds(options.first, options.seeds, options.workers, digest=options.digest, **kind)
    pairs = report.counts.pop("pairs", Counter())
    if options.json:
        print(json.dumps(report.as_dict() | ({"pairs": pairs} if options.coverage else {})))
    else:
        for name, value in report.as_dict().items():
            print(f"{name}: {value}")
        if options.coverage:
            print(table(pairs))
    for seed, _ in report.violations[:1]:
        print(explain(seed, **kind))
    for seed, violation in report.violations[1:]:
        print(f"seed {seed}: {violation}")
    return 1 if report.violations else 0
