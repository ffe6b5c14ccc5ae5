"""One person's plugin: its home, its process, and what it was told.

Everything that is told goes one after another. A process that does not answer is killed with all it has started; the
next call starts another, after a pause that grows as long as they die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from everthread.adapters.memory.hermes_bridge.acknowledged import Ledger
from everthread.adapters.memory.hermes_bridge.child_process import Answer, Child, Failed
from everthread.adapters.memory.hermes_bridge.plugin_home import Place
from everthread.concurrency import in_daemon_thread
from everthread.domain.backoff import Backoff
from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.errors import Rejected, StartOver, Unavailable
from everthread.domain.events import Delivery

START_S_MAX = 50.0
TELL_S_MAX = 120.0
ASK_S_MAX = 30.0
GRACE_S = 3.0
"""Between the end of somebody's patience with a delivery and the end of the process."""
ATTEMPTS_MAX = 8
"""Errors of unknown kind, before an entry counts as one that the plugin will never take."""
RESTART = Backoff(first_s=0.5, max_s=15.0)

T = TypeVar("T")


class Call(Struct, frozen=True):
    """One call of a hook of a session's instance."""

    session_id: str
    hook: str
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    opens: dict[str, Any] = {}
    """What an instance is told when it is made for the session."""
    leaves: bool = False
    """The session's instance is let go afterwards, so that it keeps nothing back."""
    holds: bool = True
    """Whether the plugin may keep it back until then."""

    def request(self) -> dict[str, Any]:
        return {
            "session": self.session_id,
            "hook": self.hook,
            "args": self.args,
            "named": self.named,
            "opens": self.opens,
            "leaves": self.leaves,
        }


class Person:
    def __init__(
        self,
        provider: str,
        plugin: str,
        python: Path,
        place: Place,
        ledger: Ledger,
        new_life: Callable[[], str],
        told: Mapping[str, Any],
    ) -> None:
        self._provider = provider
        self._plugin = plugin
        self._python = python
        self._place = place
        self._ledger = ledger
        self._new_life = new_life
        self._told = told
        self._life = ""
        self._child: Child | None = None
        self._starting: asyncio.Future[Child] | None = None
        self._order = asyncio.Lock()
        self._in_flight: object = None
        self._breaker = CircuitBreaker()
        self._tells: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self.greeting = Answer(0)
        self.used_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._tells

    async def hello(self) -> Answer:
        """What the plugin has; its process is started for it."""
        await self._running()
        return self.greeting

    async def tell(self, call: Call, delivery: Delivery) -> None:
        """Once, if the plugin is known to have taken it. Raises `StartOver`, `Unavailable` or `Rejected`.

        Who stops waiting leaves it behind: it may still end well, and is not told twice then.
        """
        task = asyncio.ensure_future(self._tell(call, delivery))
        self._tells.add(task)
        task.add_done_callback(self._tells.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GRACE_S, self._give_up, delivery)
            raise

    async def ask(self, call: Call) -> str:
        """What a hook answers, in text. Raises `Unavailable` or `Failed`."""
        self._use()
        child = await self._running()
        answer = await child.ask("ask", call.request(), ASK_S_MAX)
        await self._settle(answer.left, self._life)
        return answer.value or ""

    async def aclose(self) -> None:
        self._is_closed = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        child, self._child = self._child, None
        if child is not None:
            await self._settle(await child.aclose(), self._life)

    # ------------------------------------------------------------------------------------------------------------------

    async def _tell(self, call: Call, delivery: Delivery) -> None:
        async with self._order:
            self._use()
            child = await self._running()
            life, session_id = self._life, call.session_id
            lost = await self._kept(lambda: self._ledger.lost(session_id, life))
            if lost is not None:
                why = "the plugin's process has died, and perhaps with it what it held of this session"
                raise StartOver(self._provider, why, seq=lost)
            if await self._kept(lambda: self._ledger.is_told(delivery.key)):
                return
            self._in_flight = delivery
            try:
                answer = await child.ask("tell", call.request(), TELL_S_MAX)
            except Failed as error:
                raise self._failure(error, delivery) from None
            finally:
                self._in_flight = None
            self._breaker = CircuitBreaker()
            await self._kept(
                lambda: self._ledger.add(delivery.key, session_id, delivery.seq, life if call.holds else "")
            )
            await self._settle(answer.left if not call.leaves else (*answer.left, session_id), life)

    async def _settle(self, sessions: tuple[str, ...], life: str) -> None:
        for session_id in sessions:
            await self._kept(lambda session_id=session_id: self._ledger.settle(session_id, life))

    async def _kept(self, act: Callable[[], T]) -> T:
        async with self._ledger.lock:
            return await in_daemon_thread(act, f"{self._provider}:ledger")

    def _give_up(self, delivery: Delivery) -> None:
        if self._in_flight is delivery and self._child is not None:
            self._child.kill("no answer in time; its process was ended")

    def _failure(self, error: Failed, delivery: Delivery) -> Exception:
        if error.kind == "refused" or (error.kind == "failed" and delivery.attempt >= ATTEMPTS_MAX):
            return Rejected(self._provider, str(error))
        return Unavailable(self._provider, str(error))

    async def _running(self) -> Child:
        """The process, started if there is none. Whoever stops waiting for that does not stop it."""
        now = asyncio.get_running_loop().time()
        if self._is_closed:
            raise Unavailable(self._provider, "is shut down")
        if self._child is not None and self._child.is_alive:
            return self._child
        if self._starting is None:
            if self._child is not None:
                await self._bury()
            if (pause_s := self._breaker.open_until - now) > 0:
                raise Unavailable(
                    self._provider,
                    f"its process has ended, and is started again in {pause_s:.1f} s",
                    retry_after_s=pause_s,
                )
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    def _started(self, done: asyncio.Future[Child]) -> None:
        self._starting = None
        if done.cancelled() or done.exception() is not None:
            self._pause()

    async def _start(self) -> Child:
        child = await Child.start(self._provider, self._python, self._place.home, self._place.log)
        try:
            asked = {"plugin": self._plugin, "home": str(self._place.home), "told": self._told}
            greeting = await child.ask("hello", asked, START_S_MAX)
        except Failed as error:
            await child.aclose()
            raise Unavailable(self._provider, str(error)) from None
        except BaseException:
            child.kill("was not wanted any more")
            await child.aclose()
            raise
        if not greeting.available:
            await child.aclose()
            raise Unavailable(
                self._provider,
                f"the plugin says that it is not set up; its settings belong into {self._place.settings} "
                f"(config.yaml and .env); then run: everthread memory bridge test {self._provider}",
            )
        self._child, self._life, self.greeting = child, self._new_life(), greeting
        return child

    async def _bury(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._pause()
            await child.aclose()

    def _pause(self) -> None:
        delay_s = RESTART.delay_s(self._breaker.failures + 1)
        self._breaker = self._breaker.after_failure(asyncio.get_running_loop().time(), delay_s)

    def _use(self) -> None:
        self.used_at = asyncio.get_running_loop().time()
