"""Provider that records the hooks that run beside a turn."""

from __future__ import annotations

from collections.abc import Callable

from everthread.domain.model import SessionRef
from everthread.ports.memory import MemoryProvider


class NoticeRecorder(MemoryProvider):
    """Record calls of `on_turn_start` and `queue_prefetch`. `before` runs ahead of each: it may raise or block."""

    def __init__(self, name: str = "notices", *, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.name = name
        self.calls: list[tuple[str, str, SessionRef]] = []
        self._before = before

    def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        self._before()
        self.calls.append(("on_turn_start", user, ref))

    def queue_prefetch(self, query: str, *, ref: SessionRef) -> None:
        self._before()
        self.calls.append(("queue_prefetch", query, ref))
