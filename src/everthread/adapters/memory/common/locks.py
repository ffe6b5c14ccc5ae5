"""One writer at a time of whatever has a name: a session, a document."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from weakref import WeakValueDictionary


class Alone:
    """Nobody else of this process is at the same name meanwhile. The journal has one process deliver to a provider."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[str, asyncio.Lock]()

    def at(self, name: str) -> AbstractAsyncContextManager[object]:
        return self._locks.setdefault(name, asyncio.Lock())
