"""Run the gateway in this process, from acquiring the lock to a graceful shutdown.

The first SIGTERM or SIGINT shuts down within a time limit; the second exits immediately. Unfinished work is stored, so
the process may exit at any point. A watchdog thread enforces the limit even if the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway.lock import GatewayLock, LockHolder, pid_namespace
from everthread.cli.commands.gateway.systemd import ALIVE, READY, STOPPING, notify
from everthread.cli.commands.gateway.token_access import read_token_access
from everthread.cli.context import CliRuntime, Web
from everthread.cli.exit_codes import INTERRUPTED
from everthread.config.environment import notify_socket
from everthread.config.webhook_secrets import disabled_webhooks
from everthread.gc_tuning import collect_and_freeze
from everthread.log_context import Private

if TYPE_CHECKING:
    from everthread.gateway.server import Gateway

log = logging.getLogger("everthread.gateway")

WRAP_UP_S = 0.5
"""Part of the shutdown limit reserved for releasing turns and notifying plugins."""
SHUTDOWN_S = 0.2

OnReady = Callable[[LockHolder, "Gateway", tuple[str, ...], str], None]
"""Receives the problems, and a hint about API tokens that may be empty."""


async def serve(runtime: CliRuntime, lock: GatewayLock, signals: ShutdownSignals, on_ready: OnReady) -> None:
    """Serve until a stop signal. Calls `on_ready` once everything is up. Raises `Busy` if another gateway runs."""
    stop, systemd = signals.stop_requested(), notify_socket()
    holder = LockHolder(os.getpid(), runtime.holder, runtime.clock.now(), namespace=pid_namespace())
    lock.acquire(holder)
    service = _Service(runtime)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        starting = asyncio.ensure_future(service.start())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=WRAP_UP_S)
            return
        problems, gateway = starting.result(), service.gateway
        assert gateway is not None
        access = await read_token_access(runtime)
        holder = replace(holder, port=service.port, socket=service.socket)
        lock.write_holder(holder)
        gateway_report.write_report(runtime.settings.home, gateway_report.make_report(gateway, holder.holder))
        on_ready(holder, gateway, (*problems, *access.problems), access.hint)
        notify(systemd, READY)
        while not stop.is_set():
            await asyncio.wait({stopping}, timeout=gateway_report.INTERVAL_S)
            gateway_report.write_report(runtime.settings.home, gateway_report.make_report(gateway, holder.holder))
            notify(systemd, ALIVE)
    finally:
        stopping.cancel()
        notify(systemd, STOPPING)
        log.info("gateway stopping")
        await service.stop()
        gateway_report.remove_report(runtime.settings.home)
        log.info("gateway stopped")


class _Service:
    """The gateway and the HTTP server, from `start` to `stop`."""

    def __init__(self, runtime: CliRuntime) -> None:
        self._runtime = runtime
        self.gateway: Gateway | None = None
        self._web: Web | None = None

    @property
    def port(self) -> int | None:
        return self._web.port if self._web is not None else None

    @property
    def socket(self) -> str | None:
        path = self._runtime.settings.gateway.http.socket
        return str(path) if self._web is not None and path is not None else None

    async def start(self) -> tuple[str, ...]:
        """Start everything and return the problems found, one line each."""
        runtime = self._runtime
        problems = tuple(await runtime.ready())
        if runtime.settings.gateway.http.enabled:
            disabled = dict.fromkeys(disabled_webhooks(runtime.settings).values())
            problems += tuple(f"{problem}; {fix}" for problem, fix in disabled)
        for problem in problems:
            log.warning("problem at the start: %s", Private(problem))
        gateway = runtime.gateway()
        web = runtime.web(gateway) if runtime.settings.gateway.http.enabled else None
        self.gateway = gateway
        await gateway.start()
        if web is not None:
            await web.start()
            self._web = web
        collect_and_freeze()
        log.info(
            "gateway started, serving %s", ", ".join([*gateway.platforms, *(["http"] if web else [])]) or "nothing"
        )
        return problems

    async def stop(self) -> None:
        """Stop receiving, let running turns end, release the others, notify plugins; within `gateway.drain_s`."""
        # The loop's clock is monotonic; the wall clock may be set meanwhile.
        now, drain_s = asyncio.get_running_loop().time, self._runtime.settings.gateway.drain_s
        deadline = now() + drain_s
        wrap_up_s = min(WRAP_UP_S, drain_s / 2)
        if self.gateway is not None:
            await _within(drain_s, self.gateway.stop(drain_s - wrap_up_s), "the platforms")
        if self._web is not None:
            # The stopping gateway accepts nothing more, so the server has nothing left to wait for.
            await _within(max(deadline - now(), wrap_up_s), self._web.stop(), "HTTP")
        await self._runtime.stop(max(deadline - now(), wrap_up_s) - wrap_up_s / 2, shutdown_s=SHUTDOWN_S)


async def _within(bound_s: float, work: Coroutine[Any, Any, None], what: str) -> None:
    """Wait for `work` up to `bound_s`, then cancel it. Errors are logged, so that the shutdown goes on."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=bound_s)
    if not task.done():
        log.warning("%s did not stop within %g s", what, bound_s)
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed to stop", what, exc_info=error)


GRACE_S = 0.8
"""Delay after the shutdown limit before the watchdog exits the process."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ShutdownSignals:
    """Signal handlers and the shutdown watchdog, active inside the `with` block."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._read, self._write = os.pipe()
        self._requested = False
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._watchdog = threading.Thread(target=self._watch, name="shutdown", daemon=True)
        self._watchdog.start()
        self._before = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        # Closing the terminal must not stop the gateway.
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _ignore)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        # Wakes the watchdog; closing the pipe does so as well.
        os.write(self._write, b".")
        os.close(self._write)
        self._watchdog.join()
        os.close(self._read)

    def exit_if_requested(self) -> None:
        """Exit the process if a stop was requested.

        Everything is stored and closed. A normal exit would only free memory and wait for threads of libraries, which
        may never end.
        """
        if self._requested:
            sys.stdout.flush()
            os._exit(0)

    def stop_requested(self) -> asyncio.Event:
        """Return the event that is set when a stop is requested."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._requested:
            self._stop.set()
        return self._stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Runs between any two instructions: must not wait for a lock.
        if self._requested:
            os._exit(INTERRUPTED)
        self._requested = True
        os.write(self._write, b"!")
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _watch(self) -> None:
        if os.read(self._read, 1) == b"!" and not select.select([self._read], [], [], self._bound_s + GRACE_S)[0]:
            os.write(2, b"everthread: shutdown timed out; unfinished work continues at the next start\n")
            os._exit(0)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, a handler is not inherited by child processes."""
