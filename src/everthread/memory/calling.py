"""Calling a provider's hooks so that none of them can hold anything else up.

Async hooks run as tasks, plain ones in daemon threads of their own. A call that overstays its time is left behind and
counted; a provider with too many of those is not called at all until one comes back.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from everthread.daemon_thread import in_daemon_thread
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery, Event
from everthread.ports import MemoryProvider
from everthread.ports.memory import HOOK_OF

STUCK_MAX = 4
INITIALIZE_S_MAX = 60.0


class Hung(Unavailable):
    """The call has not come back in time. It may still: `pending` is done when it does."""

    def __init__(self, provider: str, timeout_s: float, pending: asyncio.Future[Any]) -> None:
        super().__init__(provider, f"no answer within {timeout_s:g} s")
        self.pending = pending


class Caller:
    """Runs the hooks of one provider."""

    def __init__(self, provider: MemoryProvider, settings: dict[str, Any] | None = None) -> None:
        self.provider = provider
        self.name = provider.name
        self._settings = settings or {}
        self._ready = False
        self._initializing = asyncio.Lock()
        self._stuck: set[asyncio.Future[Any]] = set()

    def has(self, hook: str) -> bool:
        """Whether the provider brings this hook itself."""
        return getattr(type(self.provider), hook, None) is not getattr(MemoryProvider, hook)

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    async def ready(self) -> None:
        """Initialise the provider once; one that can't be initialised is unavailable until it can."""
        if self._ready:
            return
        async with self._initializing:
            if not self._ready:
                if self.has("initialize"):
                    await self.call("initialize", timeout_s=INITIALIZE_S_MAX, **self._settings)
                self._ready = True

    async def deliver(self, event: Event, delivery: Delivery, *, timeout_s: float) -> None:
        hook, adapter = HOOK_OF[type(event)]
        if self.has(hook):
            await self._bounded(hook, lambda: adapter(self.provider, event, delivery), timeout_s)

    async def call(self, hook: str, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        function = getattr(self.provider, hook)
        return await self._bounded(hook, lambda: function(*args, **kwargs), timeout_s)

    async def _bounded(self, hook: str, function: Callable[[], Any], timeout_s: float) -> Any:
        if len(self._stuck) >= STUCK_MAX:
            raise Unavailable(self.name, f"{len(self._stuck)} calls have not come back")
        is_async = inspect.iscoroutinefunction(getattr(self.provider, hook))
        pending = asyncio.ensure_future(function()) if is_async else in_daemon_thread(function, f"{self.name}:{hook}")
        try:
            await asyncio.wait({pending}, timeout=timeout_s)
        except asyncio.CancelledError:
            pending.cancel()
            raise
        if pending.done():
            return pending.result()
        pending.add_done_callback(self._came_back)
        self._stuck.add(pending)
        if is_async:
            pending.cancel()
        raise Hung(self.name, timeout_s, pending)

    def _came_back(self, pending: asyncio.Future[Any]) -> None:
        self._stuck.discard(pending)
        if not pending.cancelled():
            pending.exception()
