"""Gateway on an emulated Telegram, and the emulator as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import PlatformAccount, ProviderSettings, ReviewSettings, Settings, Variables
from everthread.domain.model import Session, SessionKey, Turn
from everthread.gateway.server import Gateway
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers
from tests.gateway import grant_everybody
from tests.runtime import until

TOKEN = "42:a-secret-that-must-never-be-seen"
ANN, BOB = 4001, 4002
ANN_KEY = SessionKey.parse(f"agent:main:telegram:dm:{ANN}")


class EmulatorProcess:
    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everthread.testing.telegram", "--port", "0", "--token", TOKEN, *options],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.base_url = str(json.loads(self._process.stdout.readline())["base_url"])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def introduce(base_url: str, *users: int) -> None:
    """Let users start the bot, which can't write to them before, and confirm the updates."""
    async with TelegramUsers(base_url) as people, aiohttp.ClientSession() as http:
        for user in users:
            met = await people.say(user, "/start")
            behind = {"offset": (met.update_id or 0) + 1}
            async with http.post(f"{base_url}/bot{TOKEN}/getUpdates", json=behind) as response:
                assert response.status == 200


class TelegramGateway:
    """A gateway that serves Telegram, and its users."""

    def __init__(self, emulator: TelegramEmulator, people: TelegramUsers, runtime: Runtime, gateway: Gateway) -> None:
        self.emulator, self.people, self.runtime, self.gateway = emulator, people, runtime, gateway

    async def hear(self, text: str, user: int = ANN) -> list[str]:
        """Send a message in a direct chat and wait for the answers."""
        await self.people.refresh()
        before = len(self.people.texts(user))
        await self.people.say(user, text)
        await self.people.until(lambda: len(self.people.texts(user)) > before, f"an answer to {text!r}")
        await self.rest()
        await self.people.refresh()
        return self.people.texts(user)[before:]

    async def rest(self) -> None:
        """Wait until the gateway is idle."""
        await until(lambda: not self.gateway.worker.busy and not self.gateway.outbox.waiting, "rest")

    async def session(self, key: SessionKey = ANN_KEY) -> Session:
        found = await self.runtime.store.read(lambda uow: uow.sessions.at(key)[1])
        assert found is not None
        return found

    async def turns(self, session_id: str) -> tuple[Turn, ...]:
        return await self.runtime.store.read(
            lambda uow: uow.turns.own_turns(session_id, after=0, up_to=10**9, limit=10**6)
        )


def settings_of(home: Path, model: ModelServer, base_url: str, **more: Any) -> Settings:
    account = {"allow_all": True, "stream": False, **more.pop("account", {})}
    more.setdefault("review", ReviewSettings(every_turns=0))
    return Settings(
        home,
        model="stub/one",
        providers={"stub": ProviderSettings("openai_compat", model.base_url), **more.pop("endpoints", {})},
        platforms={"telegram": PlatformAccount("telegram", base_url=base_url, **account)},
        variables=Variables({"TELEGRAM_BOT_TOKEN": TOKEN, "KEY": "secret-key"}),
        **more,
    )


@asynccontextmanager
async def telegram_gateway(
    home: Path, model: ModelServer, emulator: TelegramEmulator | None = None, *, drain_s: float = 5.0, **more: Any
) -> AsyncIterator[TelegramGateway]:
    """Open a gateway as wired by its settings. A given emulator is not closed."""
    async with AsyncExitStack() as stack:
        if emulator is None:
            emulator = await stack.enter_async_context(TelegramEmulator(TOKEN, limits=False))
        people = await stack.enter_async_context(TelegramUsers(emulator.base_url))
        wired = {
            name: more.pop(name) for name in ("providers", "plugins", "policies", "clock", "tools") if name in more
        }
        more.setdefault("access", grant_everybody(wired.get("tools", ())))
        runtime = await stack.enter_async_context(Runtime(settings_of(home, model, emulator.base_url, **more), **wired))
        await runtime.ready()
        gateway = runtime.gateway()
        await gateway.start()
        try:
            yield TelegramGateway(emulator, people, runtime, gateway)
        finally:
            await gateway.stop(drain_s)
