"""One asyncio lock per name (a session, a document, a note)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from weakref import WeakValueDictionary


class KeyedLocks:
    """Serialize work on the same name within this process.

    No lock across processes is needed: the journal lets one process deliver to a provider.
    """

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[str, asyncio.Lock]()

    def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return self._locks.setdefault(name, asyncio.Lock())
