"""Command line of the explorer.

python -m tests.explorer                          explore all scenarios
python -m tests.explorer turns replies --depth 8  explore some, deeper
python -m tests.explorer --small                  as in the ordinary test suite
python -m tests.explorer mutants                  list the mutants that the explorer catches
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Sequence

from tests.explorer.scenarios import SCENARIOS, Scenario
from tests.explorer.search import Findings, Search

PROGRESS_S = 5.0


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, findings: Findings) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            sys.stderr.write(
                f"{findings.name}: depth {findings.depth + 1}, {findings.states} states, "
                f"{findings.transitions} transitions\n"
            )


def explore(scenario: Scenario, depth: int) -> Findings:
    """Explore one scenario with progress on stderr."""
    # The states leave little garbage, and collecting it repeatedly costs a fifth of the time.
    gc.disable()
    try:
        return Search(scenario, _Progress()).run(depth)
    finally:
        gc.enable()
        gc.collect()


def summary(findings: Findings) -> str:
    """Describe the result of one search in a line, or a violation with its trace."""
    reached = "all states" if findings.is_exhausted else f"depth {findings.depth}"
    line = (
        f"{findings.name}: {findings.states} states, {findings.transitions} transitions, {findings.settled} settled, "
        f"{reached}, {findings.seconds:.1f} s ({findings.cpu_s:.1f} s of CPU time)"
    )
    if not findings.violation:
        return line
    steps = [f"  {number}. {action}" for number, action in enumerate(findings.trace, 1)]
    if findings.in_settling:
        steps.append("  then the faults end, and all work is done")
    return "\n".join((line, f"VIOLATION {findings.violation}", "shortest schedule:", *steps))


def table(all_findings: Sequence[Findings]) -> str:
    """Count the transitions by step and crash point."""
    counts = {key: sum(findings.counts[key] for findings in all_findings) for f in all_findings for key in f.counts}
    columns = sorted({label for _, label in counts}, key=lambda label: (label != "no crash", label))
    lines = ["".join(("step".ljust(14), *(column.rjust(18) for column in columns)))]
    for verb in sorted({verb for verb, _ in counts}):
        cells = (str(counts.get((verb, column), "")).rjust(18) for column in columns)
        lines.append("".join((verb.ljust(14), *cells)))
    return "\n".join(lines)


def main() -> int:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="explore", description="Explore all schedules up to a bound.")
    parser.add_argument("scenarios", nargs="*", help=f"the scenarios to explore: {', '.join(names)}; or `mutants`")
    parser.add_argument("--depth", type=int, help="steps in a schedule (default: chosen for each scenario)")
    parser.add_argument("--small", action="store_true", help="the depths of the ordinary test suite")
    options = parser.parse_intermixed_args()
    logging.disable(logging.CRITICAL)
    if options.scenarios[:1] == ["mutants"]:
        from tests.explorer.mutants import list_mutants

        depth = ["--depth", str(options.depth)] if options.depth else []
        return list_mutants(options.scenarios[1:], [*(["--small"] if options.small else []), *depth])
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    found: list[Findings] = []
    for scenario in SCENARIOS:
        if options.scenarios and scenario.name not in options.scenarios:
            continue
        found.append(explore(scenario, options.depth or (scenario.small_depth if options.small else scenario.depth)))
        sys.stdout.write(f"{summary(found[-1])}\n")
        sys.stdout.flush()
        if found[-1].violation:
            return 1
    states, transitions = sum(f.states for f in found), sum(f.transitions for f in found)
    seconds, cpu_s = sum(f.seconds for f in found), sum(f.cpu_s for f in found)
    sys.stdout.write(f"{states} states, {transitions} transitions, {seconds:.0f} s ({cpu_s:.0f} s of CPU time)\n")
    sys.stdout.write(f"\n{table(found)}\n")
    return 0
