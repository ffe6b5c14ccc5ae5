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
