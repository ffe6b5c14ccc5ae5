"""Run the simulation's schedules, a hundred per test so that they spread over the CPUs.

Also test the simulator: the same seed gives the same trace, and planted bugs are detected.
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
from tests.simulator.runner import Report, explain, made, run_seed, schedule_of

from everthread.domain.model import Fate
from everthread.lifecycle import boundaries as crossing
from everthread.lifecycle import turns as turn
from everthread.memory.delivery import DeliveryService
from everthread.memory.delivery_results import DeliveryResults

SEEDS = 2000
SEEDS_PER_TEST = 100
# Histories that once ended in a violation, by version: more kinds of faults give a seed another history.
REGRESSIONS = {1: (299, 470, 159, 838, 1188, 58, 1262)}

BOUNDARIES = {"new", "reset", "resume", "branch", "compress", "rewind", "expire", "suspend", "forget"}
STORE_FAULTS = {"store busy", "disk full"}
PROVIDER_FAULTS = {f"provider {fault}" for fault in ("error", "slow", "hang", "lost", "reject", "bug")}
PROCESS_FAULTS = {"kill", "kill between statements", "stop", "stopped and continued"}
CLOCK_FAULTS = {"clock jump", "clock a year ahead", "clock an hour behind", "clock in 1970", "suspension"}
HOOK_FAULTS = {"hook raises", "hook exits", "hook hangs"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log, because the simulation injects failures."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_PER_TEST))
def test_schedules_violate_no_invariant(first: int) -> None:
    report = Report()
    for seed in range(first, first + SEEDS_PER_TEST):
        report.add(*run_seed(seed))
        if report.violations:
            pytest.fail(explain(seed), pytrace=False)
    # A schedule without events proves nothing.
    assert set(report.counts["boundaries"]) >= BOUNDARIES
    assert set(report.counts["faults"]) >= STORE_FAULTS | PROVIDER_FAULTS | PROCESS_FAULTS | CLOCK_FAULTS | HOOK_FAULTS
    assert report.counts["faults"]["inline write repeated"] > SEEDS_PER_TEST
    totals = report.counts["totals"]
    assert totals["messages"] > 10 * SEEDS_PER_TEST
    assert totals["attempts"] > totals["deliveries"] > 20 * SEEDS_PER_TEST
    assert min(totals["abandoned"], totals["facts forgotten"], totals["recalls"]) > SEEDS_PER_TEST / 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("version", "seed"), [(version, seed) for version in REGRESSIONS for seed in REGRESSIONS[version]]
)
def test_regression_histories_pass(version: int, seed: int) -> None:
    if run_seed(seed, version=version)[2] is not None:
        pytest.fail(explain(seed, version=version), pytrace=False)


def test_histories_of_version_1_keep_their_schedules() -> None:
    schedules = [schedule_of(seed, version=1) for seed in REGRESSIONS[1]]
    assert hashlib.sha256(repr(schedules).encode()).hexdigest()[:16] == "7c7fc105a06e9389"
    assert all(set(schedule_of(seed)) > set(schedule_of(seed, version=1)) for seed in REGRESSIONS[1])


def _trace(seed: int) -> list[str]:
    fixture = made(seed)
    fixture.run()
    return fixture.trace


@pytest.mark.parametrize("seed", [1, 299, 4711])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first = _trace(seed)
    assert len(first) > 50
    assert _trace(seed) == first
    assert _trace(seed + 1) != first


@pytest.mark.timeout(60)
def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--seed", "7"]
    printed = [
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True, timeout=50
        ).stdout.splitlines()
        for salt in ("1", "2")
    ]
    assert printed[0] == printed[1] == [*_trace(7), "no violation"]


# Planted bugs -------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def _the_journal_skips_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    delivered = DeliveryResults._delivered  # noqa: SLF001 - the bug is planted under the door

    def skipping(self: DeliveryResults, uow: Any, letter: Any) -> None:
        further = replace(letter.entry, seq=letter.entry.seq + 1)
        delivered(self, uow, replace(letter, entry=further) if letter.redelivery is None else letter)

    monkeypatch.setattr(DeliveryResults, "_delivered", skipping)


def _the_journal_forgets_what_it_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat every third delivery under another key, so that the back end cannot deduplicate it."""
    record, count = DeliveryService._record, iter(range(10**9))  # noqa: SLF001 - as above

    async def forgetful(self: DeliveryService, letter: Any, error: Any, lease: Any) -> Any:
        if next(count) % 3 == 0 and error is None:
            self._callers[letter.cursor.provider].provider._backend.keys.discard(letter.delivery.key)  # type: ignore  # noqa: SLF001
            return letter
        return await record(self, letter, error, lease)

    monkeypatch.setattr(DeliveryService, "_record", forgetful)


def _boundaries_close_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan
    monkeypatch.setattr(crossing, "plan", lambda *args, **named: replace(plan(*args, **named), closes=False))


def _a_running_turn_survives_its_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan
    monkeypatch.setattr(crossing, "plan", lambda *args, **named: replace(plan(*args, **named), fate=Fate.LIVE))


def _messages_that_wait_follow_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = crossing.plan
    monkeypatch.setattr(crossing, "plan", lambda *args, **named: replace(plan(*args, **named), sets_aside=False))


def _anybody_may_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def slot(uow: Any, claim: Any) -> Any:
        found = uow.slots.get(claim.turn_id)
        return found or turn.Slot(claim.turn_id, claim.ref, claim.holder, 1, Fate.LIVE, claim.message.id, 0.0)

    monkeypatch.setattr(turn, "claimed_slot", slot)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "plant",
    [
        _the_journal_skips_an_entry,
        _the_journal_forgets_what_it_delivered,
        _boundaries_close_nothing,
        _a_running_turn_survives_its_boundary,
        _messages_that_wait_follow_the_key,
        _anybody_may_commit,
    ],
)
def test_the_simulation_detects_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_seed(seed)[2] for seed in range(1, 61)), "60 schedules passed without detecting the bug"
