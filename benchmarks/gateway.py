"""Measure the gateway: `python -m benchmarks.gateway [--json] [--only NAME ...]`.

Starts three processes: the gateway, a model stub that answers immediately, and a platform on loopback. Only the
gateway's own CPU time counts. docs/reference/benchmarks.md explains each figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from benchmarks.measurement import Figure, run
from everthread.domain.api_key import make_token
from everthread.testing.loopback.users import LoopbackUsers

SESSIONS = (50, 200, 2_000, 10_000)
BATCHES = 5
BATCH = 300
AT_ONCE = 40
QUIET_CPU_S = 0.02


class PlatformUsers(Protocol):
    """The users of a platform."""

    async def say_all(self, messages: Sequence[tuple[str, str]]) -> object:
        """Send messages, given as pairs of chat and text."""
        ...

    async def answered(self, count: int) -> None:
        """Wait until the platform has `count` answers in all chats together."""
        ...


class LoopbackLoad:
    def __init__(self, people: LoopbackUsers) -> None:
        self._people = people
        self._said = 0

    async def say_all(self, messages: Sequence[tuple[str, str]]) -> None:
        self._said += len(messages)
        await self._people.say_all(messages)

    async def answered(self, count: int) -> None:
        # The platform records messages of both sides.
        await self._people.until(lambda: len(self._people.log) >= self._said + count, "answers", 120)


class MeasuredGateway:
    """A running gateway and its users."""

    def __init__(self, process: asyncio.subprocess.Process, users: PlatformUsers) -> None:
        self.process = process
        self._users = users
        self.sessions = 0
        self.messages_sent = 0
        self._chat = 0

    async def grow(self, sessions: int) -> float:
        """Raise the number of sessions: every new one sends a message, then all take turns from the first.

        Return the CPU milliseconds of each new session.
        """
        new = sessions - self.sessions
        self._chat, self.sessions = self.sessions, sessions
        start = await self.report()
        await self.say(new)
        await self.wait_until_idle()
        return ((await self.report())["cpu_s"] - start["cpu_s"]) * 1000 / new

    async def say(self, count: int) -> None:
        """Send `count` messages, one session after another, at most `AT_ONCE` at a time."""
        for _ in range(0, count, AT_ONCE):
            size = min(AT_ONCE, count)
            count -= size
            chats = [str((self._chat + n) % self.sessions) for n in range(size)]
            self._chat = (self._chat + size) % self.sessions
            await self._users.say_all(
                [(chat, f"message {self.messages_sent + n} about things") for n, chat in enumerate(chats)]
            )
            self.messages_sent += size
            await self._users.answered(self.messages_sent)

    async def wait_until_idle(self) -> None:
        """Wait until the gateway is idle: a new conversation gets its title after its first answer."""
        before = (await self.report())["cpu_s"]
        while True:
            await asyncio.sleep(0.5)
            now = (await self.report())["cpu_s"]
            if now - before < QUIET_CPU_S:
                return
            before = now

    async def report(self) -> dict[str, float]:
        self.process.send_signal(signal.SIGUSR1)
        return await self.line()

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@asynccontextmanager
async def gateway(folder: Path, tokens: Sequence[str] = ()) -> AsyncIterator[MeasuredGateway]:
    with ChildServer("everthread.testing.loopback.server") as server:
        async with (
            LoopbackUsers(server.url) as people,
            start_gateway(folder, LoopbackLoad(people), server.url, tokens) as measured,
        ):
            yield measured


@asynccontextmanager
async def start_gateway(
    folder: Path, users: PlatformUsers, platform_url: str, tokens: Sequence[str] = (), *, kind: str = "loop"
) -> AsyncIterator[MeasuredGateway]:
    """Run the gateway and its model stub for a running platform."""
    with ChildServer("everthread.testing.model_server.server") as model:
        options = {
            "home": str(folder),
            "model": f"http://127.0.0.1:{model.port}/v1",
            "platform": platform_url,
            "kind": kind,
            "tokens": tokens,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.gateway_process", json.dumps(options)),
            stdout=subprocess.PIPE,
            # The gateway keeps its bot locks there.
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
        )
        try:
            yield MeasuredGateway(process, users)
        finally:
            process.terminate()
            await process.wait()


class ChildServer:
    """A child process that prints its port first."""

    def __init__(self, module: str, *options: str) -> None:
        self._command = (sys.executable, "-m", module, "--port", "0", *options)

    def __enter__(self) -> ChildServer:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        first = json.loads(self._process.stdout.readline())
        self.port = int(first["port"] if isinstance(first, dict) else first)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def messages(folder: Path) -> dict[str, Figure]:
    """Measure the cost of a message with different numbers of sessions."""
    figures: dict[str, Figure] = {}
    stalls: list[float] = []
    async with gateway(folder) as measured:
        ready = await measured.line()
        figures["ready_cpu_ms"] = Figure.exact(ready["cpu_s"] * 1000)
        for sessions in SESSIONS:
            figures["first_message_cpu_ms"] = Figure.exact(await measured.grow(sessions))
            samples: list[float] = []
            for _ in range(BATCHES):
                start = await measured.report()
                await measured.say(BATCH)
                ended = await measured.report()
                samples.append((ended["cpu_s"] - start["cpu_s"]) * 1000 / BATCH)
                stalls.append(ended["stall_ms"])
            figures[f"cpu_ms_per_message_{sessions}"] = Figure.of(samples)
        figures["rss_mb_10k"] = Figure.exact(measured.rss_mb())
    flat = [figures[f"cpu_ms_per_message_{sessions}"].value for sessions in SESSIONS]
    figures["growth_50_to_10k"] = Figure.exact(max(flat) / flat[0])
    figures["loop_stall_ms_max"] = Figure(max(stalls), min(stalls), max(stalls))
    return figures


async def throughput(folder: Path) -> dict[str, Figure]:
    """Measure messages per second with the gateway pinned to one core; the other processes use the other cores."""
    async with gateway(folder) as measured:
        await measured.line()
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(measured.process.pid, cores[:1])
        await measured.grow(50)
        await measured.say(200)
        samples: list[float] = []
        for _ in range(BATCHES):
            start = time.monotonic()
            await measured.say(BATCH)
            samples.append(BATCH / (time.monotonic() - start))
    return {"messages_per_s": Figure.of(samples)}


async def http(folder: Path) -> dict[str, Figure]:
    """Measure the cost of a message over HTTP; every conversation has its own owner."""
    tokens = [make_token(f"{number:043}") for number in range(SESSIONS[0])]
    async with gateway(folder, tokens) as measured, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{(await measured.line())['port']}"

        async def look(_: str) -> None:
            async with client.get(f"{url}/health") as response:
                assert response.status == 200

        async def say(token: str, *, stream: bool = False) -> None:
            request = {
                "model": "everthread",
                "stream": stream,
                "messages": [{"role": "user", "content": "a message about things"}],
            }
            headers = {"Authorization": f"Bearer {token}", "X-Session-Key": "bench"}
            async with client.post(f"{url}/v1/chat/completions", json=request, headers=headers) as response:
                assert response.status == 200
                assert await response.read()

        async def cpu_ms(act: Callable[[str], Awaitable[None]]) -> Figure:
            samples: list[float] = []
            for _ in range(BATCHES + 1):
                before = await measured.report()
                for start in range(0, BATCH, len(tokens)):
                    await asyncio.gather(*(act(token) for token in tokens[: BATCH - start]))
                samples.append(((await measured.report())["cpu_s"] - before["cpu_s"]) * 1000 / BATCH)
                await measured.wait_until_idle()
            # The first batch starts the conversations.
            return Figure.of(samples[1:])

        return {
            "http_cpu_ms_per_message": await cpu_ms(say),
            "http_cpu_ms_per_message_streamed": await cpu_ms(partial(say, stream=True)),
            "http_cpu_ms_per_look": await cpu_ms(look),
        }


STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "messages": messages,
    "throughput": throughput,
    "http": http,
}

TARGETS: dict[str, float] = {
    **{f"cpu_ms_per_message_{sessions}": 6.0 for sessions in SESSIONS},
    "growth_50_to_10k": 1.25,
    "messages_per_s": 150.0,
    "loop_stall_ms_max": 50.0,
    "rss_mb_10k": 400.0,
    "ready_cpu_ms": 1500.0,
}

if __name__ == "__main__":
    run("benchmarks.gateway", __doc__, STEPS, TARGETS)
