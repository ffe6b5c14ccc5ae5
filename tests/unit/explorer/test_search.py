"""Explore every scenario at a small depth, and test the explorer: planted bugs are found by the shortest schedule.

`make model` explores the same scenarios deeper.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.explorer.actions import Bounds
from tests.explorer.runner import summary, table
from tests.explorer.scenarios import SCENARIOS, STEPS, Scenario
from tests.explorer.search import Findings, Search

from everthread.domain.boundary import New
from everthread.domain.errors import Fenced
from everthread.lifecycle import boundaries, turns
from everthread.memory.delivery_results import DeliveryResults

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
BOUNDARIES = {"new", "reset", "resume", "branch", "compress", "rewind", "expire", "suspend", "forget"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log: crashes and failures of providers are part of the schedules."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _explore(name: str, depth: int | None = None) -> Findings:
    return Search(BY_NAME[name]).run(depth or BY_NAME[name].small_depth)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_schedule_violates_an_invariant(scenario: Scenario) -> None:
    findings = _explore(scenario.name)
    assert not findings.violation, summary(findings)
    # A search without steps, crashes or settled states proves nothing.
    crashes = sum(count for (_, point), count in findings.counts.items() if point != "no crash")
    assert findings.depth == scenario.small_depth
    assert findings.transitions > findings.states > findings.settled > 0
    assert crashes > findings.transitions / 4


def test_the_slices_have_every_step_and_all_boundaries() -> None:
    assert {verb for scenario in SCENARIOS for verb in scenario.verbs} == set(STEPS)
    assert set(STEPS) >= BOUNDARIES


def test_a_search_gives_the_same_result_each_time() -> None:
    first, second = _explore("replies", 2), _explore("replies", 2)
    assert (first.states, first.transitions, first.counts) == (second.states, second.transitions, second.counts)


def test_a_search_ends_when_no_state_is_new() -> None:
    bounds = Bounds(messages=1, waits=1, crashes=0)
    findings = Search(Scenario("two steps", (), ("wait", "accept"), bounds, depth=99, small_depth=99)).run(99)
    assert findings.is_exhausted
    assert findings.depth == 3
    assert "all states" in summary(findings)


def test_a_lost_message_is_found_by_the_shortest_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = boundaries.plan

    def drop_waiting_messages(state: Any, boundary: Any, **more: Any) -> Any:
        decision = plan(state, boundary, **more)
        return replace(decision, sets_aside=False) if isinstance(boundary, New) else decision

    monkeypatch.setattr(boundaries, "plan", drop_waiting_messages)
    findings = _explore("turns")
    assert "wait at" in findings.violation
    assert _steps_of(findings, "turns") == ["P: accept at K", "P: new at K"]
    assert "shortest schedule:\n  1. P: converse at K\n" in summary(findings)


def test_a_bug_on_the_way_to_the_starting_point_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "begin", lambda uow, key, turn_id, context: None)
    findings = _explore("turns")
    assert findings.violation.startswith("on the way to the starting point: Violation: the message at ")
    assert _steps_of(findings, "turns") == []


def test_a_bug_that_only_a_crash_reveals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "_begin_command", lambda uow, inbox_id: None)
    findings = _explore("commands")
    assert "carried out twice" in findings.violation
    assert _steps_of(findings, "commands") == [
        "P: command at K (/new)",
        "P: run command at K, killed after commit of unit 1",
    ]
    assert "then the faults end" in summary(findings)


def test_a_turn_that_loses_its_holder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_fence(uow: Any, claim: Any) -> Any:
        slot = uow.slots.get(claim.turn_id)
        if slot is None:
            raise Fenced("no such turn")
        return slot

    monkeypatch.setattr(turns, "claimed_slot", without_fence)
    scenario = dataclasses.replace(BY_NAME["running turn"], verbs=("commit", "stall", "recover"))
    findings = Search(scenario).run(2)
    assert "was written by ('p1', 1), it is ('q1', 2)'s" in findings.violation
    assert _steps_of(findings, "running turn") == ["P: stall", "Q: recover"]


def test_an_entry_that_a_failing_provider_never_gets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_for_delivered(self: Any, uow: Any, pending: Any, error: Any, why: str) -> None:
        self._delivered(uow, pending)

    monkeypatch.setattr(DeliveryResults, "_postpone", take_for_delivered)
    findings = _explore("delivery")
    assert "never got [1]" in findings.violation
    assert _steps_of(findings, "delivery")[-1] == "P: deliver (error)"


def _steps_of(findings: Findings, name: str) -> list[str]:
    """The steps of the trace, without those of the starting point."""
    return [str(action) for action in findings.trace[len(BY_NAME[name].start) :]]


def test_the_table_counts_steps_by_crash_point() -> None:
    findings = _explore("everything")
    rows = {line.split("  ")[0]: line.split() for line in table([findings]).splitlines()}
    assert rows["new"][1:] == [str(findings.counts["new", point]) for point in _columns(findings, "new")]
    assert findings.counts["new", "before statement"] > 5
    assert set(rows) >= {"step", "new", "reset", "accept", "suspend"}


def _columns(findings: Findings, verb: str) -> list[str]:
    return ["no crash", *sorted(point for step, point in findings.counts if step == verb and point != "no crash")]
