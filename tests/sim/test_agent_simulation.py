"""Run the simulation with agents: compression, review and delegated work, twenty schedules per test.

For more schedules: `python -m tests.simulator --agents --seeds 2000`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.simulator.agent_model import FAULTS
from tests.simulator.runner import Report, explain, made, run_seed, schedule_of

from everthread.agent.compression import attempt as passes
from everthread.store.reviews import Reviews

SEEDS = 60
SEEDS_PER_TEST = 30
RARE = ("extracts", "compressed on request", "answers stopped")
RARE_SEEDS_MAX = 4 * SEEDS_PER_TEST
# Histories that once ended in a violation, by version: more kinds of faults give a seed another history.
REGRESSIONS = {1: (169, 7001327, 7001489)}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log, because the simulation injects failures."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_PER_TEST))
def test_agent_schedules_violate_no_invariant(first: int) -> None:
    report = Report()

    def run(seed: int) -> None:
        report.add(*run_seed(seed, agents=True))
        if report.violations:
            pytest.fail(explain(seed, agents=True), pytrace=False)

    for seed in range(first, first + SEEDS_PER_TEST):
        run(seed)
    # A schedule without events proves nothing.
    agents = report.counts["agents"]
    check_common_events(report)
    # A change of the program may move rare events to other seeds.
    for seed in range(1_000 + first, 1_000 + first + RARE_SEEDS_MAX):
        if all(agents[name] for name in RARE):
            break
        run(seed)
    assert min(agents[name] for name in RARE) > 0


def check_common_events(report: Report) -> None:
    agents, faults = report.counts["agents"], report.counts["faults"]
    assert min(agents["summaries applied"], agents["work handed over"]) > SEEDS_PER_TEST
    assert agents["reviews done"] > 4 * SEEDS_PER_TEST
    assert agents["summaries begun"] > agents["summaries applied"]
    assert agents["reviews taken"] > agents["reviews done"]
    assert len([name for name in faults if name.startswith("summary ")]) >= len(set(FAULTS["summary"])) - 2
    assert len(report.counts["deaths"]) > 12
    assert sum(report.counts["meanwhile"].values()) > SEEDS_PER_TEST / 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("version", "seed"), [(version, seed) for version in REGRESSIONS for seed in REGRESSIONS[version]]
)
def test_regression_histories_pass(version: int, seed: int) -> None:
    if run_seed(seed, agents=True, version=version)[2] is not None:
        pytest.fail(explain(seed, agents=True, version=version), pytrace=False)


def test_histories_of_version_1_keep_their_schedules() -> None:
    schedules = [schedule_of(seed, agents=True, version=1) for seed in REGRESSIONS[1]]
    assert hashlib.sha256(repr(schedules).encode()).hexdigest()[:16] == "be79558129f35000"


@pytest.mark.timeout(60)
def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--agents", "--seed", "7"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=50).stdout
    fixture = made(7, agents=True)
    fixture.run()
    assert len(fixture.trace) > 50
    assert printed.splitlines() == [*fixture.trace, "no violation"]


# Planted bugs -------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def _a_summary_stands_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of = passes.check_summary

    def too_much(source: Any, *given: Any) -> Any:
        made = made_of(source, *given)
        last = (*source.parts.covered, *source.parts.kept)[-1].number
        boundary = replace(made.boundary, covers_to=last)
        return passes.FinishedSummary(made.ref, boundary, made.turns, made.gain, made.instead_because)

    monkeypatch.setattr(passes, "check_summary", too_much)


def _anybody_takes_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Reviews.claim
    monkeypatch.setattr(Reviews, "claim", lambda self, holder, now: claim(self, holder, now + 1e6))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "plant",
    [_a_summary_stands_for_too_much, _anybody_takes_a_review],
)
def test_the_simulation_detects_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_seed(seed, agents=True)[2] for seed in range(1, 21)), "20 schedules passed without detecting the bug"
