"""How much a bot may send: about one message a second in a chat, twenty a minute in a group, thirty a second in all.

Short bursts are let through. Edits count like messages.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHAT = (5.0, 1.0)
_GROUP = (20.0, 20 / 60)
_ALL = (30.0, 30.0)


@dataclass(slots=True)
class _Bucket:
    size: float
    per_s: float
    left: float
    at: float

    def wait_s(self, now: float) -> float:
        self.left = min(self.size, self.left + (now - self.at) * self.per_s)
        self.at = now
        return 0.0 if self.left >= 1 else (1 - self.left) / self.per_s


class Limits:
    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._buckets: dict[tuple[str, int], _Bucket] = {}

    def wait_s(self, chat: int, now: float) -> float:
        """How long to stay away before something may be sent there; 0 counts it as sent."""
        if not self.is_on:
            return 0.0
        kinds = [("all", 0, _ALL), ("chat", chat, _CHAT)]
        if chat < 0:
            kinds.append(("group", chat, _GROUP))
        buckets = [
            self._buckets.setdefault((kind, whose), _Bucket(size, per_s, size, now))
            for kind, whose, (size, per_s) in kinds
        ]
        wait_s = max(bucket.wait_s(now) for bucket in buckets)
        if wait_s == 0:
            for bucket in buckets:
                bucket.left -= 1
        return wait_s

    def forget(self) -> None:
        self._buckets.clear()
