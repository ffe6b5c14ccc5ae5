"""Calling a provider's hooks so that none of them can hold anything else up.

Async hooks run as tasks, plain ones in daemon threads of their own. A call that overstays its time is left behind and
counted; a provider with too many of those is not called at all until one comes back.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any

from everthread.concurrency import in_daemon_thread
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery, Event
from everthread.ports.memory import HOOK_OF, MemoryProvider, has, is_told

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
        self.is_told = is_told(provider)
        self._settings = settings or {}
        self._ready = False
        self._beginning: asyncio.Future[None] | None = None
        self._stuck: set[asyncio.Future[Any]] = set()

    def has(self, hook: str) -> bool:
        """Whether the provider brings this hook itself."""
        return has(self.provider, hook)

    @property
    def is_ready(self) -> bool:
        return self._ready

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    async def ready(self, timeout_s: float = math.inf) -> None:
        """Initialise the provider once; one that can't be initialised is unavailable until it can."""
        if self._ready:
            return
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
            # Everybody may have stopped waiting by the time it fails.
            self._beginning.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Whoever stops waiting must not stop, or start a second time, what the others wait for as well.
        beginning, timeout_s = self._beginning, min(timeout_s, INITIALIZE_S_MAX)
        await asyncio.wait({beginning}, timeout=timeout_s)
        if not beginning.done():
            raise Unavailable(self.name, f"not initialised within {timeout_s:g} s")
        try:
            beginning.result()
        except (Exception, asyncio.CancelledError) as error:
            # Whatever the reason: nothing was handed over yet, so nothing is there to be given up.
            raise Unavailable(self.name, f"can't be initialised: {str(error) or repr(error)}") from error

    async def _begin(self) -> None:
        try:
            if self.has("initialize"):
                await self._started("initialize", lambda: self.provider.initialize(**self._settings))
            self._ready = True
        finally:
            self._beginning = None

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
        pending = self._started(hook, function)
        try:
            await asyncio.wait({pending}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._leave_behind(hook, pending)
            raise
        if pending.cancelled():
            # Not by us. Passed on as it is, it would end the task of whoever called, without a word.
            raise Unavailable(self.name, "the call was cancelled by itself")
        if pending.done():
            return pending.result()
        self._leave_behind(hook, pending)
        raise Hung(self.name, timeout_s, pending)

    def _started(self, hook: str, function: Callable[[], Any]) -> asyncio.Future[Any]:
        if self._is_async(hook):
            return asyncio.ensure_future(function())
        return asyncio.ensure_future(_in_thread(lambda: self._contained(function), f"{self.name}:{hook}"))

    def _contained(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception:
            raise
        except BaseException as error:
            # It would end its thread, and nobody would ever hear of it.
            raise Unavailable(self.name, f"the call was ended by {error!r}") from error

    def _is_async(self, hook: str) -> bool:
        return inspect.iscoroutinefunction(getattr(self.provider, hook))

    def _leave_behind(self, hook: str, pending: asyncio.Future[Any]) -> None:
        """A thread can't be stopped: it counts until it comes back, and so does a task that won't be cancelled."""
        self._stuck.add(pending)
        pending.add_done_callback(self._came_back)
        if self._is_async(hook):
            pending.cancel()

    def _came_back(self, pending: asyncio.Future[Any]) -> None:
        self._stuck.discard(pending)
        if not pending.cancelled():
            pending.exception()


async def _in_thread(function: Callable[[], Any], name: str) -> Any:
    result = await in_daemon_thread(function, name)
    # A plain function may hand out something to await, as decorated async hooks do.
    return await result if inspect.isawaitable(result) else result
