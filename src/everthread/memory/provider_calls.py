"""Call a provider's hooks with a time limit, so that a slow hook blocks nothing else.

Async hooks run as tasks, plain ones in daemon threads. A call that exceeds its limit is abandoned and counted; a
provider with too many abandoned calls is not called until one of them returns.
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
from everthread.ports.memory import HOOK_OF, MemoryProvider, overrides, receives_events

STUCK_MAX = 4
INITIALIZE_S_MAX = 60.0


class CallTimeout(Unavailable):
    """A call exceeded its time limit. `pending` is done when it returns after all."""

    def __init__(self, provider: str, timeout_s: float, pending: asyncio.Future[Any]) -> None:
        super().__init__(provider, f"no answer within {timeout_s:g} s")
        self.pending = pending


class Caller:
    """Runs the hooks of one provider."""

    def __init__(self, provider: MemoryProvider, settings: dict[str, Any] | None = None) -> None:
        self.provider = provider
        self.name = provider.name
        self.receives_log = receives_events(provider)
        self._settings = settings or {}
        self._ready = False
        self._initialising: asyncio.Future[None] | None = None
        self._stuck: set[asyncio.Future[Any]] = set()

    def has(self, hook: str) -> bool:
        """Return True if the provider overrides this hook."""
        return overrides(self.provider, hook)

    @property
    def is_ready(self) -> bool:
        return self._ready

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    async def ready(self, timeout_s: float = math.inf) -> None:
        """Initialise the provider once. Raises `Unavailable` until that succeeds."""
        if self._ready:
            return
        if self._initialising is None:
            self._initialising = asyncio.ensure_future(self._initialise())
            # Retrieve the error, because no caller may be waiting any more.
            self._initialising.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Waiting does not cancel: other callers wait for the same initialisation.
        initialising, timeout_s = self._initialising, min(timeout_s, INITIALIZE_S_MAX)
        await asyncio.wait({initialising}, timeout=timeout_s)
        if not initialising.done():
            raise Unavailable(self.name, f"not initialized within {timeout_s:g} s")
        try:
            initialising.result()
        except (Exception, asyncio.CancelledError) as error:
            # Any error counts as an outage: no entry was delivered yet, so none can be parked for it.
            raise Unavailable(self.name, f"can't be initialized: {str(error) or repr(error)}") from error

    async def _initialise(self) -> None:
        try:
            if self.has("initialize"):
                await self._start("initialize", lambda: self.provider.initialize(**self._settings))
            self._ready = True
        finally:
            self._initialising = None

    async def deliver(self, event: Event, delivery: Delivery, *, timeout_s: float) -> None:
        hook, adapter = HOOK_OF[type(event)]
        if self.has(hook):
            await self._call_within(hook, lambda: adapter(self.provider, event, delivery), timeout_s)

    async def call(self, hook: str, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        function = getattr(self.provider, hook)
        return await self._call_within(hook, lambda: function(*args, **kwargs), timeout_s)

    async def _call_within(self, hook: str, function: Callable[[], Any], timeout_s: float) -> Any:
        if len(self._stuck) >= STUCK_MAX:
            raise Unavailable(self.name, f"{len(self._stuck)} calls have not returned")
        pending = self._start(hook, function)
        try:
            await asyncio.wait({pending}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._abandon(hook, pending)
            raise
        if pending.cancelled():
            # Not cancelled by us; raising CancelledError would silently end the calling task.
            raise Unavailable(self.name, "the call cancelled itself")
        if pending.done():
            return pending.result()
        self._abandon(hook, pending)
        raise CallTimeout(self.name, timeout_s, pending)

    def _start(self, hook: str, function: Callable[[], Any]) -> asyncio.Future[Any]:
        if self._is_async(hook):
            return asyncio.ensure_future(function())
        return asyncio.ensure_future(_in_thread(lambda: self._run_contained(function), f"{self.name}:{hook}"))

    def _run_contained(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception:
            raise
        except BaseException as error:
            # It would end the thread without being reported.
            raise Unavailable(self.name, f"the call was ended by {error!r}") from error

    def _is_async(self, hook: str) -> bool:
        return inspect.iscoroutinefunction(getattr(self.provider, hook))

    def _abandon(self, hook: str, pending: asyncio.Future[Any]) -> None:
        """Count an abandoned call until it returns: a thread can't be stopped, and a task may ignore cancellation."""
        self._stuck.add(pending)
        pending.add_done_callback(self._on_returned)
        if self._is_async(hook):
            pending.cancel()

    def _on_returned(self, pending: asyncio.Future[Any]) -> None:
        self._stuck.discard(pending)
        if not pending.cancelled():
            pending.exception()


async def _in_thread(function: Callable[[], Any], name: str) -> Any:
    result = await in_daemon_thread(function, name)
    # A plain function may return an awaitable, as decorated async hooks do.
    return await result if inspect.isawaitable(result) else result
