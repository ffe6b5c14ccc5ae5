"""Gateway as wired by `Runtime`, with a fake platform and a stub model server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.adapters.sqlite.connection import BUSY_S_MAX
from everthread.bootstrap.runtime import TIMERS_LANE, Runtime
from everthread.config.schema import (
    AccessGrants,
    AccessSettings,
    PlatformAccount,
    ProviderSettings,
    ReviewSettings,
    Settings,
)
from everthread.domain.model import Session, SessionKey, Turn
from everthread.gateway.server import Gateway
from everthread.ports.tools import Tool
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from tests.fake_platform import FakePlatform
from tests.runtime import MovableClock, until

ANNA = SessionKey.parse("agent:main:fake:dm:42")


def echo(request: Any) -> Say:
    """Script of a model that repeats the last user message."""
    texts = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {texts[-1]}")


class GatewayFixture:
    def __init__(
        self, runtime: Runtime, gateway: Gateway, platform: FakePlatform, model: ModelServer, clock: MovableClock
    ) -> None:
        self.runtime, self.gateway, self.platform, self.model, self.clock = runtime, gateway, platform, model, clock

    async def session(self, key: SessionKey = ANNA) -> Session:
        found = await self.runtime.store.read(lambda uow: uow.sessions.at(key)[1])
        assert found is not None
        return found

    async def turns(self, session_id: str = "", key: SessionKey = ANNA) -> tuple[Turn, ...]:
        session_id = session_id or (await self.session(key)).id
        return await self.runtime.store.read(
            lambda uow: uow.turns.own_turns(session_id, after=0, up_to=10**9, limit=10**6)
        )

    async def hear(self, text: str, chat: str = "42") -> list[str]:
        """Send a message and wait for the answers."""
        before = len(self.platform.texts(chat))
        self.platform.say(text, chat=chat, user=chat)
        await until(lambda: len(self.platform.texts(chat)) > before, f"an answer to {text!r}")
        await self.rest()
        return self.platform.texts(chat)[before:]

    async def rest(self) -> None:
        """Wait until the gateway is idle."""
        await until(lambda: not self.gateway.worker.busy and not self.gateway.outbox.waiting, "rest")

    async def later(self, seconds: float) -> None:
        """Let time pass without waiting."""
        self.clock.advance(seconds)
        self.runtime.lanes.wake(TIMERS_LANE)

    async def settled(self) -> None:
        """Wait until no provider or plugin has pending entries."""
        assert await self.runtime.drain(8.0), "entries are still pending"


def grant_everybody(tools: Iterable[Tool]) -> AccessSettings:
    """Let everybody use the tools that a test adds: most tests are not about rights."""
    added = AccessGrants(tuple(tool.name for tool in tools))
    return AccessSettings(guests=added, groups=added)


@asynccontextmanager
async def gateway_fixture(
    home: Path,
    model: ModelServer,
    platform: FakePlatform | None = None,
    *,
    account: PlatformAccount | None = None,
    providers: tuple[object, ...] = (),
    plugins: tuple[object, ...] = (),
    policies: Any = None,
    drain_s: float = 5.0,
    others: tuple[FakePlatform, ...] = (),
    clock: MovableClock | None = None,
    extra_tools: tuple[Tool, ...] = (),
    busy_s_max: float = BUSY_S_MAX,
    **more: Any,
) -> AsyncIterator[GatewayFixture]:
    clock = clock or MovableClock()
    platform = platform or FakePlatform()
    more.setdefault("review", ReviewSettings(every_turns=0))
    more.setdefault("access", grant_everybody(extra_tools))
    settings = Settings(
        home,
        model="stub/one",
        providers=more.pop("endpoints", None) or {"stub": ProviderSettings("openai_compat", model.base_url)},
        platforms={each.name: account or PlatformAccount("fake", allow_all=True) for each in (platform, *others)},
        **more,
    )
    runtime = Runtime(
        settings,
        platforms=(platform, *others),
        providers=providers,
        plugins=plugins,
        policies=policies,
        clock=clock,
        tools=extra_tools,
        busy_s_max=busy_s_max,
    )
    async with runtime:
        await runtime.ready()
        gateway = runtime.gateway()
        await gateway.start()
        try:
            yield GatewayFixture(runtime, gateway, platform, model, clock)
        finally:
            await gateway.stop(drain_s)
