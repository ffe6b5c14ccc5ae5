"""Being the gateway of a home: from the lock to the last reply, in this process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everthread.cli.gateway import reporting
from everthread.cli.gateway.ending import Ending
from everthread.cli.gateway.holding import Held, Holding, namespace
from everthread.cli.gateway.notifying import ALIVE, READY, STOPPING, notify
from everthread.cli.opened import Runtime, Web
from everthread.collecting import settle
from everthread.config import notify_socket

if TYPE_CHECKING:
    from everthread.gateway.serving import Gateway

log = logging.getLogger("everthread.gateway")

WRAP_UP_S = 0.5
"""Of the time that an end may take, what is kept for giving back and for telling plugins."""
SHUTDOWN_S = 0.2

Tell = Callable[[Held, "Gateway", tuple[str, ...]], None]


async def serve(runtime: Runtime, holding: Holding, ending: Ending, tell: Tell) -> None:
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

    def __init__(self, runtime: Runtime) -> None:
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
