"""Fault injection with a few repetitions each; `make faults` runs the same checks many times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from tests.faults import downloads as fetching
from tests.faults import kills, memory, network
from tests.faults import many_chats as crowd
from tests.faults import replies as talking
from tests.faults.fixture import PlatformKind
from tests.faults.result import Outcome

Fault = Callable[[Path, int], Awaitable[Outcome]]

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (memory.failing_for_a_while, 3),
        (partial(memory.hanging_then_new_then_exit, drain_s=1.5), 2),
        (partial(memory.new_while_hanging, command_s_max=1.0), 5),
        (memory.evicted_then_new, 5),
        (memory.killed_then_expired, 1),
        (partial(memory.ended_with_slow_writes, drain_s=1.5), 1),
    ],
    ids=[
        "provider-fails-for-a-while",
        "provider-hangs-new-exit",
        "new-while-a-provider-hangs",
        "evicted-then-new",
        "killed-then-expired",
        "ended-with-slow-writes",
    ],
)
async def test_a_memory_fault_loses_and_repeats_nothing(tmp_path: Path, fault: Fault, times: int) -> None:
    outcome = await fault(tmp_path / "scene", times)
    assert outcome.problems == [], outcome.counts


@pytest.mark.parametrize("platform", ["loop", "telegram"])
@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (memory.killed_at_the_reply, 2),
        (talking.delivered_twice, 5),
        (talking.right_after_a_reply, 5),
        (network.waiting_at_the_start, 20),
        (partial(network.told_to_wait, per_chat=2), 5),
        (partial(network.cut_off, seconds=3.0), 5),
        (network.answer_lost, 4),
    ],
    ids=[
        "killed-at-the-reply",
        "delivered-twice",
        "right-after-a-reply",
        "waiting-at-the-start",
        "told-to-wait",
        "cut-off",
        "answer-lost",
    ],
)
async def test_a_platform_fault_loses_and_repeats_nothing(
    tmp_path: Path, fault: Callable[..., Awaitable[Outcome]], times: int, platform: PlatformKind
) -> None:
    outcome = await fault(tmp_path / "scene", times, platform=platform)
    assert outcome.problems == [], outcome.counts


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (talking.delivered_twice, 5),
        (network.waiting_at_the_start, 20),
        (partial(network.cut_off, seconds=3.0), 5),
    ],
    ids=["delivered-twice", "waiting-at-the-start", "cut-off"],
)
async def test_a_webhook_fault_loses_and_repeats_nothing(
    tmp_path: Path, fault: Callable[..., Awaitable[Outcome]], times: int
) -> None:
    outcome = await fault(tmp_path / "scene", times, platform="webhook")
    assert outcome.problems == [], outcome.counts


@pytest.mark.parametrize("platform", ["loop", "telegram"])
async def test_answers_reach_their_session_when_users_switch_sessions_mid_turn(
    tmp_path: Path, platform: PlatformKind
) -> None:
    outcome = await crowd.in_mid_turn(tmp_path / "scene", 20, platform=platform, seed=5)
    assert outcome.problems == [], outcome.counts
    # Make sure that some session changes happened during a turn.
    assert outcome.counts["messages late"]
    assert outcome.counts["messages set_aside"]


async def test_a_download_interrupted_by_a_kill_is_completed(tmp_path: Path) -> None:
    outcome = await fetching.killed_while_fetching(tmp_path / "scene", 2)
    assert outcome.problems == [], outcome.counts


@pytest.mark.parametrize("platform", ["loop", "telegram"])
async def test_ten_kills_under_load(tmp_path: Path, platform: PlatformKind) -> None:
    outcome = await kills.killed_under_load(tmp_path / "scene", 10, platform=platform, chats=10, life_s_max=0.5)
    assert outcome.problems == [], outcome.counts


async def test_kills_with_visible_repeats_repeat_nothing(tmp_path: Path) -> None:
    outcome = await kills.killed_under_load(tmp_path / "scene", 2, repeats=True, chats=10, seed=7)
    assert outcome.problems == [], outcome.counts
