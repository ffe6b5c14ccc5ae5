"""Run the `everthread` command with a file-based platform: python gateway_worker.py WAYS.json ARGUMENT...

Lines in `in.jsonl` in the home are inbound messages; outbound messages are appended to `out.jsonl`. A third file,
`taken`, holds the number of acknowledged lines, which a real platform would keep on its server. WAYS lists the
deviations from normal behaviour.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from everthread.bootstrap.clock import SystemClock
from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.schema import Settings
from everthread.domain.errors import PlatformUnavailable
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionRef
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.plugins import hookimpl
from everthread.ports.memory import MemoryProvider
from everthread.ports.platform import Address, Button, Capabilities, Media, Outbound, Take, Update

NAME = "post"


def append(file: Path, **said: object) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(said) + "\n")


class Post:
    """File-based platform. A message that is sent twice appears twice in the output file."""

    name = NAME
    capabilities = Capabilities(text_chars_max=4000)
    finder = None

    def __init__(self, home: Path, ways: dict[str, Any]) -> None:
        self._in, self._out, self._taken = home / "in.jsonl", home / "out.jsonl", home / "taken"
        self._ways = ways

    async def run(self, take: Take) -> None:
        if self._ways.get("down"):
            raise PlatformUnavailable("the post office is shut")
        while True:
            taken = int(self._taken.read_text() or 0) if self._taken.exists() else 0
            lines = self._in.read_text().splitlines() if self._in.exists() else []
            for number, line in enumerate(lines[taken:], taken + 1):
                said = json.loads(line)
                await take(
                    Update(
                        NAME, "box", str(number), said["chat"], ChatType.DM, said["chat"], said["text"], user_name="A"
                    )
                )
                self._taken.write_text(str(number))
                if self._ways.get("holds_the_loop"):
                    time.sleep(1000)  # noqa: ASYNC251 - that is the point
            await asyncio.sleep(0.01)

    async def send(self, message: Outbound) -> str:
        if self._ways.get("slow_send"):
            append(self._out.with_name("sending.jsonl"), id=message.id)
            await asyncio.Event().wait()
        append(self._out, id=message.id, chat=message.to.chat, text=message.text)
        return message.id

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        raise NotImplementedError

    async def show_typing(self, to: Address) -> None:
        raise NotImplementedError

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None:
        if self._ways.get("slow_close"):
            await asyncio.Event().wait()


class Diary(MemoryProvider):
    """Memory provider that appends each turn to a file, or hangs."""

    def __init__(self, home: Path, hangs: bool) -> None:
        super().__init__()
        self.name = "diary"
        self._file, self._hangs = home / "diary.jsonl", hangs

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        append(self._file, turn=user)

    async def on_session_end(self, messages: Any, *, ref: SessionRef, delivery: Delivery, **_: Any) -> None:
        append(self._file, closed=ref.session_id, key=delivery.key)

    async def shutdown(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()


class HookRecorder:
    def __init__(self, home: Path, ways: dict[str, Any]) -> None:
        self._file, self._ways = home / "hooks.jsonl", ways

    @hookimpl
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        append(self._file, hook="finalize", session=session_id, platform=platform)
        if self._ways.get("hook") == "raises":
            raise RuntimeError("no")

    @hookimpl
    def on_session_reset(self, session_id: str, platform: str) -> None:
        append(self._file, hook="reset", session=session_id, platform=platform)


class FileClock(SystemClock):
    """Real time, ahead by the seconds in a file."""

    def __init__(self, home: Path) -> None:
        self._file = home / "ahead"

    def _ahead_s(self) -> float:
        return float(self._file.read_text()) if self._file.exists() else 0.0

    def now(self) -> float:
        return super().now() + self._ahead_s()

    def elapsed(self) -> float:
        return super().elapsed() + self._ahead_s()


class FakeHttpServer:
    """Replacement for the HTTP server."""

    def __init__(self, home: Path) -> None:
        self._file, self.port = home / "web.jsonl", 0

    async def start(self) -> None:
        self.port = 4711
        append(self._file, web="started")

    async def stop(self) -> None:
        append(self._file, web="stopped")


class Served(Runtime):
    stand_in = True

    def web(self, gateway: Any) -> Any:
        return FakeHttpServer(self.settings.home) if self.stand_in else super().web(gateway)


def main() -> int:
    ways = json.loads(sys.argv[1])

    def open_runtime(settings: Settings) -> Runtime:
        return Runtime(settings)

    def open_serving(settings: Settings) -> Runtime:
        served = Served(
            settings,
            policies=ResetPolicies(ResetPolicy(idle_s=ways["idle_s"])) if "idle_s" in ways else settings.reset,
            platforms=(Post(settings.home, ways),),
            providers=(Diary(settings.home, bool(ways.get("diary_hangs"))),) if ways.get("diary", True) else (),
            plugins=(HookRecorder(settings.home, ways),),
            clock=FileClock(settings.home) if "idle_s" in ways else SystemClock(),
        )
        served.stand_in = not ways.get("http")
        return served

    if ways.get("thread"):
        threading.Thread(target=lambda: time.sleep(1000)).start()
    return cli.run(open_runtime, sys.argv[2:], open_serving=open_serving)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
