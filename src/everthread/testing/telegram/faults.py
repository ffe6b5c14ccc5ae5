"""Faults injected by a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from everthread.testing.telegram.errors import ApiError, forbidden, rate_limited
from everthread.testing.telegram.objects import Update
from everthread.testing.telegram.protocol import Fault

_OF_UPDATES = ("duplicate", "reorder")


class Faults:
    def __init__(self) -> None:
        self._pending: list[Fault] = []
        self._cut_until = 0.0

    def inject(self, fault: Fault) -> None:
        self._pending.append(fault)

    def cut(self, seconds: float) -> None:
        self._cut_until = time.monotonic() + seconds

    def heal(self) -> None:
        self._pending.clear()
        self._cut_until = 0.0

    @property
    def is_cut(self) -> bool:
        return time.monotonic() < self._cut_until

    def next(self, call: str, chat: int | None) -> Fault | None:
        """Take the next fault that matches this call."""
        return self._take(lambda fault: fault.kind not in _OF_UPDATES, call, chat)

    def reorder(self, batch: Sequence[Update]) -> list[Update]:
        """Order outgoing updates, with `duplicate` and `reorder` faults applied."""
        if not batch:
            return []
        if self._take(lambda fault: fault.kind == "duplicate", None, None):
            batch = [one for update in batch for one in (update, update)]
        if len(batch) > 1 and self._take(lambda fault: fault.kind == "reorder", None, None):
            batch = batch[::-1]
        return list(batch)

    def _take(self, fits: Callable[[Fault], bool], call: str | None, chat: int | None) -> Fault | None:
        for number, fault in enumerate(self._pending):
            is_call = call is None or fault.call is None or fault.call.lower() == call
            if fits(fault) and is_call and fault.chat in (None, chat):
                left = replace(fault, times=fault.times - 1)
                self._pending[number : number + 1] = [left] if left.times > 0 else []
                return fault
        return None


def fault_response(fault: Fault) -> ApiError | None:
    """Error response of a fault; None for faults without one."""
    match fault.kind:
        case "busy":
            return rate_limited(fault.seconds)
        case "error":
            return ApiError(500, "Internal Server Error")
        case "unavailable":
            return ApiError(502, "Bad Gateway")
        case "refuse":
            return forbidden("the test refuses this call")
        case _:
            return None
