"""Being the gateway of a home: from the lock to the last reply, in this process.

Being told to end: once, and it is done in good order within a bound; twice, and it is done at once.

Whatever is left undone is stored, so the end may come at any point. The bound holds even if something holds the loop: a
thread sees to that, which does nothing else.
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

from everthread.cli.commands.gateway import report as reporting
from everthread.cli.commands.gateway.lock import Held, Holding, namespace
from everthread.cli.commands.gateway.systemd_notify import ALIVE, READY, STOPPING, notify
from everthread.cli.context import CliRuntime, Web
from everthread.cli.exit_codes import INTERRUPTED
from everthread.config.environment import notify_socket
from everthread.gc_tuning import settle

if TYPE_CHECKING:
    from everthread.gateway.server import Gateway

log = logging.getLogger("everthread.gateway")

WRAP_UP_S = 0.5
"""Of the time that an end may take, what is kept for giving back and for telling plugins."""
SHUTDOWN_S = 0.2

Tell = Callable[[Held, "Gateway", tuple[str, ...]], None]


async def serve(runtime: CliRuntime, holding: Holding, ending: Ending, tell: Tell) -> None:
    """Serve until told to end. Raises `Busy` if another gateway does already. `tell` is told once all is up."""
    told, systemd = ending.told(), notify_socket()
    held = Held(os.getpid(), runtime.holder, runtime.clock.now(), namespace=namespace())
    holding.take(held)
    service = _Service(runtime)
    ended = asyncio.ensure_future(told.wait())
    try:
        starting = asyncio.ensure_future(service.start())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=WRAP_UP_S)
            return
        problems, gateway = starting.result(), service.gateway
        assert gateway is not None
        held = replace(held, port=service.port)
        holding.tell(held)
        reporting.write(runtime.settings.home, reporting.report_of(gateway, held.holder))
        tell(held, gateway, problems)
        notify(systemd, READY)
        while not told.is_set():
            await asyncio.wait({ended}, timeout=reporting.EVERY_S)
            reporting.write(runtime.settings.home, reporting.report_of(gateway, held.holder))
            notify(systemd, ALIVE)
    finally:
        ended.cancel()
        notify(systemd, STOPPING)
        log.info("the gateway stops")
        await service.stop()
        reporting.remove(runtime.settings.home)
        log.info("the gateway has stopped")


class _Service:
    """What is served, from `start` to `stop`."""

    def __init__(self, runtime: CliRuntime) -> None:
        self._runtime = runtime
        self.gateway: Gateway | None = None
        self._web: Web | None = None

    @property
    def port(self) -> int | None:
        return self._web.port if self._web is not None else None

    async def start(self) -> tuple[str, ...]:
        """What is not as it should be, a line each."""
        runtime = self._runtime
        problems = tuple(await runtime.ready())
        for problem in problems:
            log.warning("%s", problem)
        gateway = runtime.gateway()
        web = runtime.web(gateway) if runtime.settings.gateway.http.enabled else None
        self.gateway = gateway
        await gateway.start()
        if web is not None:
            await web.start()
            self._web = web
        settle()
        log.info("the gateway serves %s", ", ".join([*gateway.platforms, *(["http"] if web else [])]) or "nothing")
        return problems

    async def stop(self) -> None:
        """Take nothing more, let what runs end, give the rest back, tell the plugins; within `gateway.drain_s`."""
        # By the loop's clock: the one on the wall may be put forward or back meanwhile.
        now, drain_s = asyncio.get_running_loop().time, self._runtime.settings.gateway.drain_s
        deadline = now() + drain_s
        wrap_up_s = min(WRAP_UP_S, drain_s / 2)
        if self.gateway is not None:
            await _within(drain_s, self.gateway.stop(drain_s - wrap_up_s), "the platforms")
        if self._web is not None:
            # Since the gateway stops, it takes nothing more either; now it has nothing left to wait for.
            await _within(max(deadline - now(), wrap_up_s), self._web.stop(), "HTTP")
        await self._runtime.stop(max(deadline - now(), wrap_up_s) - wrap_up_s / 2, shutdown_s=SHUTDOWN_S)


async def _within(bound_s: float, work: Coroutine[Any, Any, None], what: str) -> None:
    """See it through, or leave it; whatever it meets, the rest of the end comes after it."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=bound_s)
    if not task.done():
        log.warning("%s did not end within %g s", what, bound_s)
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s did not end well", what, exc_info=error)


LAST_S = 0.8
"""How long after its bound an end is made short."""
_ENDS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Hears the signals while it is entered."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._read, self._write = os.pipe()
        self._begun = False
        self._told: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._watching = threading.Thread(target=self._watch, name="ending", daemon=True)
        self._watching.start()
        self._before = {number: signal.signal(number, self._hear) for number in _ENDS}
        # A terminal that goes away takes no service with it.
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _heed_not)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        # The thread reads this, or the end behind it.
        os.write(self._write, b".")
        os.close(self._write)
        self._watching.join()
        os.close(self._read)

    def leave(self) -> None:
        """Be gone, if told to: all is stored and closed. What is left to do is to free memory, and to wait for others'
        threads, which may never end.
        """
        if self._begun:
            sys.stdout.flush()
            os._exit(0)

    def told(self) -> asyncio.Event:
        """Set once the program has been told to end."""
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        if self._begun:
            self._told.set()
        return self._told

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # Between any two steps of the program: nothing here may wait for a lock.
        if self._begun:
            os._exit(INTERRUPTED)
        self._begun = True
        os.write(self._write, b"!")
        if self._loop is not None and self._told is not None:
            self._loop.call_soon_threadsafe(self._told.set)

    def _watch(self) -> None:
        if os.read(self._read, 1) == b"!" and not select.select([self._read], [], [], self._bound_s + LAST_S)[0]:
            os.write(2, b"everthread: stopped in the middle; what was not finished is gone on with at the next start\n")
            os._exit(0)


def _heed_not(number: int, frame: FrameType | None) -> None:
    """Unlike a signal that is ignored, one that is heard is not ignored by children as well."""
