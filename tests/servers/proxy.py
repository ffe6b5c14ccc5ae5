"""A TCP proxy in front of a real server, with faults on demand. Each request has its own connection."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

from everthread.testing.fault_proxy import NOT_FORWARDED, whole_response
from everthread.testing.model_server.http import HttpRequest, HttpServer, read_request, respond

START_S_MAX = 10.0


class FaultProxyServer(HttpServer):
    """Proxy with the faults of the provider contract kit: `fail_next`, `reject_next`, `lose_next`, `hang` and `heal`.

    `keeps` lists the requests that store texts, as `POST /path`. Only their responses get lost.
    """

    def __init__(self, address: str, keeps: str) -> None:
        super().__init__()
        self._there = urlsplit(address)
        self._keeps = re.compile(keeps)
        self._failing = self._rejecting = self._losing = self.steps = 0
        self._acted = False
        self._answers: dict[str, bytes] = {}
        self._started = threading.Event()
        self.passed: list[str] = []
        """Requests that reached the server."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="door", daemon=True)
        self._thread.start()
        assert self._started.wait(START_S_MAX), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._in_loop(self._end.set)
        self._thread.join(START_S_MAX)

    async def _live(self) -> None:
        self._loop, self._end, self._open = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._open.set()
        await self.start()
        self._started.set()
        await self._end.wait()
        await self.stop()

    def _in_loop(self, act: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(act)

    def fail_next(self, calls: int = 1) -> None:
        self._failing = calls

    def reject_next(self, calls: int = 1) -> None:
        self._rejecting = calls

    def lose_next(self, calls: int = 1) -> None:
        self._losing = calls

    def cut_at(self, step: int, *, acted: bool) -> None:
        """Cut off the request with this number: before the server receives it, or after the server has processed it."""
        self.steps, self._acted = step, acted

    def answer(self, what: str, body: bytes) -> None:
        """Answer such requests in the proxy until `heal`."""
        self._answers[what] = body

    def hang(self) -> None:
        self._in_loop(self._open.clear)

    def heal(self) -> None:
        self._failing = self._rejecting = self._losing = self.steps = 0
        self._answers.clear()
        self._in_loop(self._open.set)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        await self._open.wait()
        if self._failing:
            self._failing -= 1
            return await respond(writer, 503, b'{"detail":"not now"}')
        if self._rejecting:
            self._rejecting -= 1
            return await respond(writer, 422, b'{"detail":"not like this"}')
        what = f"{method} {received.path}"
        if what in self._answers:
            return await respond(writer, 200, self._answers[what])
        self.passed.append(what)
        self.steps -= 1
        if self.steps == 0 and not self._acted:
            return False
        answer = await self._asked(method, received)
        if self.steps == 0:
            return False
        if self._losing and self._keeps.fullmatch(what):
            self._losing -= 1
            return False
        writer.write(answer)
        await writer.drain()
        return False

    async def _asked(self, method: str, received: HttpRequest) -> bytes:
        assert self._there.hostname is not None
        reader, writer = await asyncio.open_connection(self._there.hostname, self._there.port)
        try:
            kept = {name: value for name, value in received.headers.items() if name not in NOT_FORWARDED}
            kept |= {"host": self._there.netloc, "connection": "close", "content-length": str(len(received.body))}
            lines = [f"{method} {received.path} HTTP/1.1", *(f"{name}: {value}" for name, value in kept.items())]
            writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + received.body)
            await writer.drain()
            return await whole_response(reader, method)
        finally:
            writer.close()
