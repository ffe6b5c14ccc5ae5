"""Long work on the event loop in slices, with room between two for whoever else waits.

Threads would not do: they share the interpreter, and each of several that are busy makes the loop wait for its share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from everthread.domain.model import Turn

T = TypeVar("T")

MESSAGES_MAX = 100
CHARS_MAX = 200_000
"""Of a slice: about a millisecond, by whichever of the two is reached first."""


async def in_slices(work: Callable[[Turn], T], turns: Sequence[Turn]) -> list[T]:
    """What comes of each turn, in their order. Nobody is waited for where there is little."""
    done: list[T] = []
    messages = chars = 0
    for turn in turns:
        if messages >= MESSAGES_MAX or chars >= CHARS_MAX:
            await asyncio.sleep(0)  # noqa: TID251 - no time is to pass
            messages = chars = 0
        done.append(work(turn))
        messages += len(turn.messages)
        chars += sum(len(message.content) for message in turn.messages)
    return done
