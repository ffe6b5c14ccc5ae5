"""Fixture for faults: a platform, a model and a gateway, each in its own process, on one folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from msgspec import json as msgspec_json

from everthread.adapters.sqlite.connection import connect_bare
from tests.faults import worker
from tests.faults.platforms import OnLoopback, OnTelegram
from tests.faults.proxy import CutProxy
from tests.faults.worker import BACK_END, TOKEN, GatewayOptions, diary_path, mood_path

PlatformKind = Literal["loop", "telegram", "webhook"]
"""`webhook` is Telegram with updates by webhook instead of polling."""

PATIENCE_S = 60.0
SOON = "--delay-ms=0"
MARKED = """
SELECT messages.content FROM messages JOIN turns ON turns.id = messages.id / 4096
JOIN replies ON replies.turn_id = turns.turn_id WHERE messages.role = 'user' AND replies.state = 'ambiguous'
"""
UNREST = """
SELECT (SELECT COUNT(*) FROM inbox WHERE state IN ('waiting', 'running')) + (SELECT COUNT(*) FROM slots)
     + (SELECT COUNT(*) FROM replies WHERE state IN ('ready', 'sending', 'draft'))
     + (SELECT COUNT(*) FROM cursors WHERE due_at IS NOT NULL) + (SELECT COUNT(*) FROM redeliveries)
     + (SELECT COUNT(*) FROM providers WHERE scanned_pos < (SELECT MAX(pos) FROM log))
"""


class Effect(NamedTuple):
    """An entry that the diary holds."""

    session_id: str
    seq: int
    kind: str
    facts: dict[str, Any]


class GatewayProcess:
    """One gateway process, from its start to its end."""

    def __init__(self, orders: GatewayOptions, complaints: Path) -> None:
        self.orders = orders
        self._complaints = complaints
        with complaints.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(worker.__file__), msgspec_json.encode(orders).decode()],
                stdout=subprocess.PIPE,
                stderr=stderr,
                # The record of served bots is stored there.
                env={**os.environ, "XDG_STATE_HOME": orders.home},
            )

    async def serves(self) -> Self:
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line == b"ready\n", self.complaints()
        return self

    def kill(self) -> None:
        """Kill with -9. The process has ended when this returns."""
        self.process.kill()
        self.process.wait()
        self._close()

    async def end(self) -> float:
        """End with SIGTERM, as a service manager does. Return the seconds this took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, PATIENCE_S)
        assert code == 0, self.complaints()
        self._close()
        return time.monotonic() - began

    def complaints(self) -> str:
        return self._complaints.read_text()[-4000:]

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()


class Scene:
    """Processes and files around a gateway that outlive it."""

    def __init__(
        self,
        folder: Path,
        *,
        platform: PlatformKind = "loop",
        model: Sequence[str] = (SOON,),
        repeats: bool = False,
        limits: bool = False,
        cable: bool = False,
    ) -> None:
        """Store the options.

        `model`: options of the stub model server in addition to echoing. `repeats`: the platform shows a repeated send
        twice, as Telegram always does. `limits`: the platform enforces rate limits. `cable`: the gateway reaches the
        platform through a proxy.
        """
        self.folder = folder
        self.home = folder / "home"
        self.kind: PlatformKind = platform
        self._model_options = model
        self.repeats = repeats or platform != "loop"
        self._limits = limits
        self._has_cable = cable
        self._cables: list[CutProxy] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lives: list[GatewayProcess] = []

    async def __aenter__(self) -> Self:
        self.home.mkdir(parents=True)
        with sqlite3.connect(diary_path(self.home)) as back_end:
            back_end.execute("PRAGMA journal_mode = WAL")
            back_end.execute(BACK_END)
        back_end.close()
        model = self._begin("everthread.testing.model_server.server", "--echo", *self._model_options)
        platform = self._begin_platform()
        self._model, self._platform = _port(model), _port(platform)
        people = OnLoopback if self.kind == "loop" else OnTelegram
        self.people = await people(f"http://127.0.0.1:{self._platform}").__aenter__()
        self._listener = _free_port()
        # Port for incoming webhooks. With a cable, both directions go through a proxy.
        self._brought_to = self._listener
        if self._has_cable:
            self._platform = await self._lead_to(self._platform)
            self._brought_to = await self._lead_to(self._listener)
        return self

    async def _lead_to(self, port: int) -> int:
        """Start a proxy to this port. Return the proxy's port."""
        cable = await CutProxy(port).__aenter__()
        self._cables.append(cable)
        return cable.port

    async def cut(self, seconds: float) -> None:
        """Cut the connections between the gateway and the platform, both ways. Return once they are restored."""
        await asyncio.gather(*(cable.cut(seconds) for cable in self._cables))

    async def __aexit__(self, *_: object) -> None:
        await self.people.__aexit__()
        for cable in self._cables:
            await cable.__aexit__()
        for life in self._lives:
            if life.process.poll() is None:
                life.kill()
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _begin_platform(self) -> subprocess.Popen[bytes]:
        if self.kind != "loop":
            limits = [] if self._limits else ["--no-limits"]
            return self._begin("everthread.testing.telegram", "--token", TOKEN, *limits)
        return self._begin("everthread.testing.loopback.server", *(["--repeats"] if self.repeats else []))

    def _begin(self, module: str, *options: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", module, *options], stdout=subprocess.PIPE)
        self._processes.append(process)
        return process

    def begin(self, **orders: Any) -> GatewayProcess:
        """Start a gateway; `serves` waits for it."""
        orders.setdefault("origin", time.time())
        orders.setdefault("idempotent", not self.repeats)
        orders.setdefault("kind", "loop" if self.kind == "loop" else "telegram")
        if self.kind == "webhook":
            orders |= {"webhook_port": self._listener, "brought_to": f"http://127.0.0.1:{self._brought_to}/telegram"}
        life = GatewayProcess(
            GatewayOptions(
                str(self.home), f"http://127.0.0.1:{self._platform}", f"http://127.0.0.1:{self._model}/v1", **orders
            ),
            self.folder / "gateway.log",
        )
        self._lives.append(life)
        return life

    async def start(self, **orders: Any) -> GatewayProcess:
        return await self.begin(**orders).serves()

    def feel(self, mood: str) -> None:
        """Set the mood of the diary: `well`, `fail`, `hang`, `slow SECONDS`."""
        new = self.home / "mood.new"
        new.write_text(mood)
        new.rename(mood_path(self.home))

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Query the current rows of the store."""
        store = connect_bare(str(self.home / "everthread.db"))
        try:
            return list(store.execute(query, arguments))
        finally:
            store.close()

    def effects(self, kind: str = "") -> list[Effect]:
        """Entries that the diary holds, in order of arrival."""
        back_end = sqlite3.connect(diary_path(self.home), timeout=30)
        try:
            rows = back_end.execute("SELECT session_id, seq, kind, facts FROM effects ORDER BY id").fetchall()
        finally:
            back_end.close()
        found = [Effect(session, seq, what, json.loads(facts)) for session, seq, what, facts in rows]
        return [one for one in found if kind in ("", one.kind)]

    async def rest(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until nothing is pending: no message, no reply, no memory delivery."""
        deadline = time.monotonic() + patience_s
        while left := self.rows(UNREST)[0][0]:
            assert time.monotonic() < deadline, f"{left} things still wait: {self._lives[-1].complaints()}"
            await asyncio.sleep(0.05)

    def marked(self) -> list[str]:
        """Messages whose reply is in an uncertain state, without attachments."""
        return [text.partition("\n")[0] for (text,) in self.rows(MARKED)]

    async def waiting(self) -> int:
        """Number of unacknowledged updates."""
        return await self.people.waiting()

    def told_to_wait(self) -> int:
        """Number of sends that were rate limited and retried, from the gateway log."""
        return len(
            re.findall(
                r"too (?:much at once|many requests); retrying in [0-9]+\.", (self.folder / "gateway.log").read_text()
            )
        )

    def logged(self, words: str) -> int:
        """Number of occurrences in the gateway log."""
        return (self.folder / "gateway.log").read_text().count(words)

    async def all_taken(self, patience_s: float = 30.0) -> None:
        deadline = time.monotonic() + patience_s
        while await self.waiting():
            assert time.monotonic() < deadline, f"updates were never acknowledged: {self._lives[-1].complaints()}"
            await asyncio.sleep(0.05)

    async def answered(self, chat: str, text: str, patience_s: float = PATIENCE_S) -> None:
        await self.people.until(
            lambda: any(one.text == answer_to(text) for one in self.people.answers(chat)), text, patience_s
        )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    return int(first["port"] if isinstance(first, dict) else first)


def answer_to(text: str) -> str:
    return f"You said: {text}"
