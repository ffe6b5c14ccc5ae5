"""How Telegram numbers messages, and which numbers are known. Pure.

A supergroup or channel counts its own messages; those of all other chats of a bot are counted together. A number that
was seen on some message can't be that of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from everthread.domain.errors import SendUncertain

SEEN_MAX = 10_000
"""So many numbers are kept of the chats that are counted together: the highest that were seen."""
OWN_SEEN_MAX = 1_000
"""And of each that is counted apart: there may be hundreds of them."""
ASKED_MAX = 128
EMPTY_MAX = 32
"""Where so many numbers behind the last that is known are nobody's, no more have been given."""
_OWN_COUNT = -1_000_000_000_000
"""Ids from here downwards are those of supergroups and channels."""


class Numbers:
    def __init__(self) -> None:
        self._seen: dict[int, set[int]] = {}
        self._lowest: dict[int, list[int]] = {}
        """The same numbers, as heaps."""
        self._dropped: dict[int, int] = {}
        """The highest that was seen and is not kept any more."""
        self._newest: dict[int, int] = {}

    def saw(self, chat: int, number: int) -> None:
        count = _count(chat)
        self._newest[count] = max(number, self._newest.get(count, 0))
        seen, lowest = self._seen.setdefault(count, set()), self._lowest.setdefault(count, [])
        if number in seen:
            return
        seen.add(number)
        heappush(lowest, number)
        if len(seen) > (OWN_SEEN_MAX if count else SEEN_MAX):
            seen.remove(dropped := heappop(lowest))
            self._dropped[count] = max(dropped, self._dropped.get(count, 0))

    def is_seen(self, chat: int, number: int) -> bool:
        return number in self._seen.get(_count(chat), ())

    def mark(self, chat: int) -> str:
        """Behind the newest that is known; empty if none is."""
        count = _count(chat)
        newest = self._newest.get(count)
        return f"{count}/{newest}" if newest is not None else ""

    def unknown(self, chat: int, mark: str, until: int | None) -> Iterator[int]:
        """The numbers behind a mark that nothing is known of, in order; before `until`, or without an end. Raises
        `SendUncertain` if they are counted in another way since, or it is not known any more which were seen.
        """
        count, _, newest = mark.partition("/")
        if count != str(_count(chat)) or not newest.isdecimal():
            raise SendUncertain("its messages are numbered in another way since")
        number = int(newest) + 1
        if number <= self._dropped.get(_count(chat), 0):
            raise SendUncertain("it was too long ago: too much came since")
        while until is None or number < until:
            if not self.is_seen(chat, number):
                yield number
            number += 1

    def newest(self, chat: int) -> int:
        return self._newest.get(_count(chat), 0)


class Search:
    """When enough has been asked, by what was answered so far."""

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self._asked = 0
        self._empty = 0

    def is_over(self, number: int) -> bool:
        """Whether none of the numbers from this one on can be it. Raises `SendUncertain` if that would take too long
        to know.
        """
        if number > self._newest and self._empty >= EMPTY_MAX:
            return True
        if self._asked >= ASKED_MAX:
            raise SendUncertain(f"it is not among the {ASKED_MAX} messages behind what was known")
        return False

    def heard(self, number: int, *, is_anybodys: bool) -> None:
        self._asked += 1
        if number > self._newest:
            self._empty = 0 if is_anybodys else self._empty + 1


def _count(chat: int) -> int:
    return chat if chat < _OWN_COUNT else 0
