"""One user's plugin: its process, its home, its deliveries.

Deliveries are sent one at a time. A process that does not answer is killed; the next call starts another one, with an
exponential backoff while they keep dying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from everthread.adapters.memory.hermes_bridge.acknowledged import DeliveryLog
from everthread.adapters.memory.hermes_bridge.child_process import PluginFailed, PluginProcess, PluginResponse
from everthread.adapters.memory.hermes_bridge.plugin_home import PluginHome
from everthread.concurrency import in_daemon_thread
from everthread.domain.backoff import Backoff
from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.errors import Rejected, StartOver, Unavailable
from everthread.domain.events import Delivery
from everthread.log_context import outside_log_scope

START_S_MAX = 50.0
DELIVER_S_MAX = 120.0
QUERY_S_MAX = 30.0
GRACE_S = 3.0
"""Time between the cancellation of a delivery and the kill of the process."""
ATTEMPTS_MAX = 8
"""Attempts that fail for an unknown reason before an entry is rejected."""
RESTART = Backoff(first_s=0.5, max_s=15.0)

T = TypeVar("T")


class PluginCall(Struct, frozen=True):
    """Call of a hook on the plugin's instance of a session."""

    session_id: str
    hook: str
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    context: dict[str, Any] = {}
    """Arguments of `initialize` for a new instance."""
    closes: bool = False
    """Shut the instance down afterwards, so that nothing stays buffered."""
    may_buffer: bool = True
    """The plugin may buffer this entry until then."""

    def request(self) -> dict[str, Any]:
        return {
            "session": self.session_id,
            "hook": self.hook,
            "args": self.args,
            "named": self.named,
            "opens": self.context,
            "leaves": self.closes,
        }


class UserPlugin:
    def __init__(
        self,
        provider: str,
        plugin: str,
        python: Path,
        home: PluginHome,
        deliveries: DeliveryLog,
        new_process_id: Callable[[], str],
        context: Mapping[str, Any],
    ) -> None:
        self._provider = provider
        self._plugin = plugin
        self._python = python
        self._home = home
        self._deliveries = deliveries
        self._new_process_id = new_process_id
        self._context = context
        self._process_id = ""
        self._child: PluginProcess | None = None
        self._starting: asyncio.Future[PluginProcess] | None = None
        self._delivery_lock = asyncio.Lock()
        self._current: object = None
        self._breaker = CircuitBreaker()
        self._deliveries_running: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self.greeting = PluginResponse(0)
        self.used_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._deliveries_running

    async def greet(self) -> PluginResponse:
        """Start the process if necessary, and return what the plugin offers."""
        await self._ready_process()
        return self.greeting

    async def deliver(self, call: PluginCall, delivery: Delivery) -> None:
        """Deliver an entry, unless the plugin has acknowledged it. Raises `StartOver`, `Unavailable` or `Rejected`.

        A cancelled delivery goes on for `GRACE_S`; if it succeeds, it is not repeated.
        """
        task = asyncio.ensure_future(self._deliver(call, delivery))
        self._deliveries_running.add(task)
        task.add_done_callback(self._deliveries_running.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GRACE_S, self._kill_overdue, delivery)
            raise

    async def query(self, call: PluginCall) -> str:
        """Call a hook that returns text. Raises `Unavailable` or `PluginFailed`."""
        self._touch()
        child = await self._ready_process()
        response = await child.request("ask", call.request(), QUERY_S_MAX)
        await self._settle(response.left, self._process_id)
        return response.value or ""

    async def aclose(self) -> None:
        self._is_closed = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        child, self._child = self._child, None
        if child is not None:
            await self._settle(await child.aclose(), self._process_id)

    # ------------------------------------------------------------------------------------------------------------------

    async def _deliver(self, call: PluginCall, delivery: Delivery) -> None:
        async with self._delivery_lock:
            self._touch()
            child = await self._ready_process()
            process_id, session_id = self._process_id, call.session_id
            lost = await self._in_thread(lambda: self._deliveries.remove_lost(session_id, process_id))
            if lost is not None:
                reason = "the plugin's process died and may have lost entries of this session"
                raise StartOver(self._provider, reason, seq=lost)
            if await self._in_thread(lambda: self._deliveries.is_acknowledged(delivery.key)):
                return
            self._current = delivery
            try:
                response = await child.request("tell", call.request(), DELIVER_S_MAX)
            except PluginFailed as error:
                raise self._translate(error, delivery) from None
            finally:
                self._current = None
            self._breaker = CircuitBreaker()
            await self._in_thread(
                lambda: self._deliveries.add(
                    delivery.key, session_id, delivery.seq, process_id if call.may_buffer else ""
                )
            )
            await self._settle(response.left if not call.closes else (*response.left, session_id), process_id)

    async def _settle(self, sessions: tuple[str, ...], process_id: str) -> None:
        for session_id in sessions:
            await self._in_thread(lambda session_id=session_id: self._deliveries.mark_safe(session_id, process_id))

    async def _in_thread(self, act: Callable[[], T]) -> T:
        async with self._deliveries.lock:
            return await in_daemon_thread(act, f"{self._provider}:ledger")

    def _kill_overdue(self, delivery: Delivery) -> None:
        if self._current is delivery and self._child is not None:
            self._child.kill("no answer in time; its process was killed")

    def _translate(self, error: PluginFailed, delivery: Delivery) -> Exception:
        if error.kind == "refused" or (error.kind == "failed" and delivery.attempt >= ATTEMPTS_MAX):
            return Rejected(self._provider, str(error))
        return Unavailable(self._provider, str(error))

    async def _ready_process(self) -> PluginProcess:
        """Return the running process, started if necessary. Cancelling the caller does not cancel the start."""
        now = asyncio.get_running_loop().time()
        if self._is_closed:
            raise Unavailable(self._provider, "is shut down")
        if self._child is not None and self._child.is_alive:
            return self._child
        if self._starting is None:
            if self._child is not None:
                await self._discard()
            if (pause_s := self._breaker.open_until - now) > 0:
                raise Unavailable(
                    self._provider,
                    f"its process has ended and restarts in {pause_s:.1f} s",
                    retry_after_s=pause_s,
                )
            self._starting = outside_log_scope(lambda: asyncio.ensure_future(self._start()))
            self._starting.add_done_callback(self._on_started)
        return await asyncio.shield(self._starting)

    def _on_started(self, done: asyncio.Future[PluginProcess]) -> None:
        self._starting = None
        if done.cancelled() or done.exception() is not None:
            self._back_off()

    async def _start(self) -> PluginProcess:
        child = await PluginProcess.start(self._provider, self._python, self._home.home, self._home.log)
        try:
            request = {"plugin": self._plugin, "home": str(self._home.home), "told": self._context}
            greeting = await child.request("hello", request, START_S_MAX)
        except PluginFailed as error:
            await child.aclose()
            raise Unavailable(self._provider, str(error)) from None
        except BaseException:
            child.kill("the start was cancelled")
            await child.aclose()
            raise
        if not greeting.available:
            await child.aclose()
            raise Unavailable(
                self._provider,
                f"the plugin is not configured; its settings belong into {self._home.settings} "
                f"(config.yaml and .env); then run: everthread memory bridge test {self._provider}",
            )
        self._child, self._process_id, self.greeting = child, self._new_process_id(), greeting
        return child

    async def _discard(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._back_off()
            await child.aclose()

    def _back_off(self) -> None:
        delay_s = RESTART.delay_s(self._breaker.failures + 1)
        self._breaker = self._breaker.after_failure(asyncio.get_running_loop().time(), delay_s)

    def _touch(self) -> None:
        self.used_at = asyncio.get_running_loop().time()
