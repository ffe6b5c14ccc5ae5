"""Rate limits of bots: about one message a second per chat, twenty a minute per group, thirty a second in total.

Short bursts are allowed. Edits count like messages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

_CHAT_BURST = 5.0
_GROUP_PER_MINUTE = 20
_ALL_PER_S = 30.0


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
        self._buckets: dict[int, _Bucket] = {}
        self._in_groups: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_GROUP_PER_MINUTE))

    def wait_s(self, chat: int, now: float) -> float:
        """Return the seconds to wait before sending to a chat. 0 counts the message as sent."""
        if not self.is_on:
            return 0.0
        everything = self._buckets.setdefault(0, _Bucket(_ALL_PER_S, _ALL_PER_S, _ALL_PER_S, now))
        this = self._buckets.setdefault(chat, _Bucket(_CHAT_BURST, 1.0, _CHAT_BURST, now))
        waits = [everything.wait_s(now), this.wait_s(now)]
        if chat < 0 and len(last := self._in_groups[chat]) == _GROUP_PER_MINUTE:
            waits.append(last[0] + 60 - now)
        wait_s = max(0.0, *waits)
        if wait_s == 0:
            everything.left -= 1
            this.left -= 1
            if chat < 0:
                self._in_groups[chat].append(now)
        return wait_s

    def forget(self) -> None:
        self._buckets.clear()
        self._in_groups.clear()
