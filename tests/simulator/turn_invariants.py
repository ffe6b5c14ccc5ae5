"""Invariants of cancelled turns: after the boundary has committed, the turn begins no effect, and soon ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from everthread.domain.model import SUBAGENT_PLATFORM
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import ModelSlot, require

CANCELLED_S_MAX = 20.0
"""Time in which a process notices that its turn was cancelled, and stores it."""


class TurnEffects:
    """Effects of running turns, checked as they begin."""

    def __init__(self, reference: ReferenceModel, counts: Counter[str]) -> None:
        self._reference = reference
        self._counts = counts
        self._seen: set[str] = set()

    def newly_cancelled(self) -> list[tuple[str, str]]:
        """Return turns that were cancelled since the last call, with the process that runs each."""
        found: list[tuple[str, str]] = []
        for turn_id, slot in self._reference.slots.items():
            if slot.fate != "live" and turn_id not in self._seen:
                self._seen.add(turn_id)
                found.append((turn_id, slot.claim[0]))
        return found

    def model_called(self, process: str, text: str) -> None:
        """Check a model call of a turn, which is found by its message."""
        for slot in self._reference.slots.values():
            if slot.claim[0] == process and self._reference.words.stored(slot.text) == text:
                self._may_act(slot, f"the model was asked about {text!r} by {process}")

    def tool_called(self, process: str, turn_id: str) -> None:
        slot = self._reference.slots.get(turn_id)
        require(slot is not None, f"{process} ran a tool of {turn_id}, which is over")
        assert slot is not None
        require(slot.claim[0] == process, f"{process} ran a tool of {turn_id}, which is {slot.claim}'s")
        self._may_act(slot, f"{process} ran a tool of {turn_id}")

    def _may_act(self, slot: ModelSlot, what: str) -> None:
        self._counts["effects checked"] += 1
        require(slot.fate == "live", f"{what}, which a boundary has cancelled")
        if slot.key.platform == SUBAGENT_PLATFORM:
            waits = self._reference.slots.get(slot.key.chat.rpartition("-")[0])
            require(waits is None or waits.fate == "live", f"{what}, whose delegating turn a boundary has cancelled")

    def is_over(self, turn_id: str, process: str, *, is_excused: Callable[[], bool]) -> None:
        """Check that a cancelled turn has ended, some time after its boundary."""
        slot = self._reference.slots.get(turn_id)
        if slot is not None and slot.claim[0] == process and not is_excused():
            require(False, f"{turn_id} of {process} goes on {CANCELLED_S_MAX} s after a boundary has cancelled it")
        self._counts["cancelled turns ended"] += 1
