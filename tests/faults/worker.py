"""A gateway in its own process, to be killed: a loopback platform, a stub model, a diary as memory provider.

Its one argument contains its orders as JSON. It prints `ready` once it serves, and on SIGTERM ends like the command
`gateway run`. The back end of the diary is a file that survives the process, like an external server. Another file
holds the diary's mood, which determines the result of each call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from everthread.bootstrap.runtime import Runtime
from everthread.cli.commands.gateway.lock import GatewayLock
from everthread.cli.commands.gateway.run import ShutdownSignals, serve
from everthread.config.schema import (
    GatewaySettings,
    HttpSettings,
    PlatformAccount,
    ProviderSettings,
    ReviewSettings,
    Settings,
    Variables,
)
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Message, SessionRef
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.ports.memory import Capability, MemoryProvider, RecallItem
from everthread.ports.platform import Platform
from everthread.testing.loopback.platform import LoopbackPlatform

TOKEN = "42:a-token-for-faults"
BACK_END = """
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, session_id TEXT, seq INTEGER, kind TEXT, facts TEXT
)
"""


class GatewayOptions(msgspec.Struct, frozen=True):
    home: str
    platform_url: str
    model_url: str
    kind: str = "loop"
    """Kind of the platform. `telegram` is configured from the settings, as in the command."""
    webhook_port: int = 0
    """Local port for Telegram webhooks, published as `brought_to`; 0 means polling."""
    brought_to: str = ""
    idempotent: bool = True
    edits: bool = False
    tasks: bool = False
    """True if the diary's hooks are coroutines instead of plain functions."""
    recall: bool = False
    """True if the diary is queried before each turn."""
    rate: float = 1.0
    """Speed of the clock."""
    origin: float = 0.0
    idle_s: float | None = None
    drain_s: float = 5.0


def diary_path(home: str | Path) -> Path:
    return Path(home) / "diary.db"


def mood_path(home: str | Path) -> Path:
    return Path(home) / "mood"


class FastClock:
    def __init__(self, origin: float, rate: float) -> None:
        self._origin, self._rate = origin, rate

    def now(self) -> float:
        return self._origin + (time.time() - self._origin) * self._rate

    def elapsed(self) -> float:
        return time.monotonic() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


class Diary(MemoryProvider):
    """Record each delivery once, depending on its mood. Hooks are plain functions: when it hangs, a thread hangs."""

    def __init__(self, home: str, *, recall: bool) -> None:
        super().__init__()
        self.name = "diary"
        self.capabilities = Capability.DEDUPLICATES | (Capability.RECALL if recall else Capability(0))
        self._home = home

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> Any:
        self._feel()
        self._write("turn", ref, delivery, number=more["turn"], text=user, answer=assistant)

    def on_session_end(self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any) -> Any:
        self._feel()
        shown = [turn.user_text for turn in more["view"].turns]
        self._write("close", ref, delivery, through=more["through_seq"], missing=more["missing"], shown=shown)

    def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Any:
        self._feel()
        return ()

    def _feel(self) -> None:
        mood = self._mood()
        if mood == "hang":
            threading.Event().wait()
        if mood.startswith("slow "):
            time.sleep(float(mood.split()[1]))

    def _mood(self) -> str:
        try:
            mood = mood_path(self._home).read_text()
        except FileNotFoundError:
            return "well"
        if mood == "fail":
            raise Unavailable(self.name, "500")
        return mood

    def _write(self, kind: str, ref: SessionRef, delivery: Delivery, **facts: Any) -> None:
        back_end = sqlite3.connect(diary_path(self._home), timeout=30, isolation_level=None)
        try:
            back_end.execute("PRAGMA synchronous = OFF")
            back_end.execute(
                "INSERT INTO effects (key, session_id, seq, kind, facts) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (delivery.key, ref.session_id, delivery.seq, kind, json.dumps(facts)),
            )
        finally:
            back_end.close()


class TaskDiary(Diary):
    """The same with coroutines."""

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._feel_in_task()
        self._write("turn", ref, delivery, number=more["turn"], text=user, answer=assistant)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        await self._feel_in_task()
        shown = [turn.user_text for turn in more["view"].turns]
        self._write("close", ref, delivery, through=more["through_seq"], missing=more["missing"], shown=shown)

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        await self._feel_in_task()
        return ()

    async def _feel_in_task(self) -> None:
        mood = self._mood()
        if mood == "hang":
            await asyncio.Event().wait()
        if mood.startswith("slow "):
            await asyncio.sleep(float(mood.split()[1]))


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=GatewayOptions)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    lock = GatewayLock(Path(orders.home))
    # As in the command.
    with ShutdownSignals(orders.drain_s) as signals:
        try:
            asyncio.run(_serve(orders, lock, signals))
        finally:
            lock.release()
        signals.exit_if_requested()


async def _serve(orders: GatewayOptions, lock: GatewayLock, signals: ShutdownSignals) -> None:
    platforms: tuple[Platform, ...] = ()
    if orders.kind == "loop":
        platforms = (LoopbackPlatform("loop", orders.platform_url, idempotent=orders.idempotent, edits=orders.edits),)
    account = PlatformAccount(
        orders.kind,
        base_url=orders.platform_url,
        allow_all=True,
        stream=orders.edits,
        webhook_url=orders.brought_to,
        webhook_port=orders.webhook_port,
    )
    settings = Settings(
        Path(orders.home),
        model="stub/one",
        providers={"stub": ProviderSettings("openai_compat", orders.model_url)},
        platforms={orders.kind: account},
        variables=Variables({"TELEGRAM_BOT_TOKEN": TOKEN}),
        gateway=GatewaySettings(drain_s=orders.drain_s, messages_per_minute=100_000, http=HttpSettings(enabled=False)),
        review=ReviewSettings(every_turns=0),
    )
    runtime = Runtime(
        settings,
        platforms=platforms,
        providers=((TaskDiary if orders.tasks else Diary)(orders.home, recall=orders.recall),),
        policies=ResetPolicies(ResetPolicy(idle_s=orders.idle_s)) if orders.idle_s is not None else None,
        clock=FastClock(orders.origin, orders.rate) if orders.rate != 1.0 else None,
    )
    async with runtime:
        await serve(runtime, lock, signals, lambda *_: say("ready"))


if __name__ == "__main__":
    main()
