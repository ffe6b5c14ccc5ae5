"""Message ids that are known, and the search among unknown ones. No I/O.

A supergroup or channel has its own sequence of ids; all other chats of a bot share one. An id that is known to belong
to a message can't belong to another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from everthread.domain.errors import SendUncertain

KNOWN_MAX = 10_000
"""Ids kept of the shared sequence: the highest ones."""
OWN_KNOWN_MAX = 1_000
"""Ids kept of each other sequence, of which there may be hundreds."""
PROBES_MAX = 128
EMPTY_MAX = 32
"""Unused ids in a row after the newest known one that prove the end of the sequence."""
_OWN_SEQUENCE = -1_000_000_000_000
"""Chat ids below this are supergroups and channels."""


class KnownMessageIds:
    def __init__(self) -> None:
        self._known: dict[int, set[int]] = {}
        self._lowest: dict[int, list[int]] = {}
        """The same ids, as heaps."""
        self._dropped: dict[int, int] = {}
        """The highest id that was known and is dropped."""
        self._newest: dict[int, int] = {}

    def add(self, chat: int, message_id: int) -> None:
        sequence = _sequence(chat)
        self._newest[sequence] = max(message_id, self._newest.get(sequence, 0))
        known, lowest = self._known.setdefault(sequence, set()), self._lowest.setdefault(sequence, [])
        if message_id in known:
            return
        known.add(message_id)
        heappush(lowest, message_id)
        if len(known) > (OWN_KNOWN_MAX if sequence else KNOWN_MAX):
            known.remove(dropped := heappop(lowest))
            self._dropped[sequence] = max(dropped, self._dropped.get(sequence, 0))

    def is_known(self, chat: int, message_id: int) -> bool:
        return message_id in self._known.get(_sequence(chat), ())

    def position(self, chat: int) -> str:
        """Return the position after the newest known id; empty if none is known."""
        sequence = _sequence(chat)
        newest = self._newest.get(sequence)
        return f"{sequence}/{newest}" if newest is not None else ""

    def unknown(self, chat: int, position: str, until: int | None) -> Iterator[int]:
        """Yield unknown ids after a position, in order, up to `until` or without end.

        Raises `SendUncertain` if the chat has another sequence now, or if known ids were dropped since.
        """
        sequence, _, newest = position.partition("/")
        if sequence != str(_sequence(chat)) or not newest.isdecimal():
            raise SendUncertain("the chat's message ids have changed since")
        message_id = int(newest) + 1
        if message_id <= self._dropped.get(_sequence(chat), 0):
            raise SendUncertain("too many messages came since")
        while until is None or message_id < until:
            if not self.is_known(chat, message_id):
                yield message_id
            message_id += 1

    def newest(self, chat: int) -> int:
        return self._newest.get(_sequence(chat), 0)


class IdSearch:
    """Decides when enough ids were probed."""

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self._probes = 0
        self._empty = 0

    def is_over(self, message_id: int) -> bool:
        """Tell whether this id and all later ones are unused. Raises `SendUncertain` after too many probes."""
        if message_id > self._newest and self._empty >= EMPTY_MAX:
            return True
        if self._probes >= PROBES_MAX:
            raise SendUncertain(f"it is not among the next {PROBES_MAX} messages")
        return False

    def record(self, message_id: int, *, exists: bool) -> None:
        self._probes += 1
        if message_id > self._newest:
            self._empty = 0 if exists else self._empty + 1


def _sequence(chat: int) -> int:
    return chat if chat < _OWN_SEQUENCE else 0
