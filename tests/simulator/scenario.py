"""Schedules of a simulation: actions and their weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

STEPS = 36
STEP_S = 1.6
ACTIONS = {
    "send": 14.0,
    "new": 2.0,
    "reset": 0.7,
    "resume": 2.5,
    "branch": 1.6,
    "compress": 1.6,
    "rewind": 1.6,
    "note": 1.5,
    "delegate": 0.6,
    "recall": 1.0,
    "forget": 0.5,
    "forget_owner": 0.15,
    "forget_fact": 1.0,
    "retry": 0.6,
    "replay": 0.5,
    "kill": 0.9,
    "kill_inside": 0.7,
    "stop": 0.4,
    "freeze": 0.6,
    "jump": 0.5,
    "fault": 4.0,
    "busy": 0.4,
    "full": 0.3,
}
EXTRA_ACTIONS = {
    "kill_boundary": 2.0,
    "freeze_boundary": 0.6,
    "hook_fault": 2.0,
    "wrong_clock": 0.8,
    "suspend_machine": 0.5,
}
"""Actions since version 2. They are added to the steps of version 1, so that a seed keeps its first schedule."""
CORE_ACTIONS = {
    **EXTRA_ACTIONS,
    "edit_notes": 2.0,
    "sync_notes": 1.2,
    "kill_sync": 0.6,
    "draft": 0.3,
    "skill": 0.3,
    "forget_in_turn": 0.8,
}
"""Further actions without agents: files of the home, and facts that are forgotten while a turn runs."""
FILE_ACTIONS = frozenset({"edit_notes", "sync_notes", "kill_sync", "draft", "skill"})
EXTRA_STEPS = 8
HOOK_FAULTS = ("raises", "exits", "hangs", "slow", "slow")
FAULTS = ("error", "error", "slow", "hang", "lost", "lost", "reject", "bug")


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a schedule. `dice` seeds its details."""

    at: float
    action: str
    dice: int


def make_schedule(dice: random.Random, of: Mapping[str, float] = ACTIONS, step_s: float = STEP_S) -> list[Step]:
    actions, weights = tuple(of), tuple(of.values())
    steps: list[Step] = []
    at = 0.0
    for action in dice.choices(actions, weights, k=STEPS):
        at += dice.expovariate(1 / step_s) if dice.random() < 0.6 else dice.random() * 0.1
        steps.append(Step(round(at, 3), action, dice.getrandbits(32)))
    return steps


def extend_schedule(schedule: list[Step], dice: random.Random, of: Mapping[str, float]) -> list[Step]:
    """Add the steps of version 2 to those of version 1."""
    actions, weights, end = tuple(of), tuple(of.values()), schedule[-1].at
    extra = [
        Step(round(dice.random() * end, 3), action, dice.getrandbits(32))
        for action in dice.choices(actions, weights, k=EXTRA_STEPS)
    ]
    return sorted((*schedule, *extra), key=lambda step: step.at)
