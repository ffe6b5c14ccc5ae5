"""Fault-injecting TCP proxy on loopback, deterministic by seed.

    async with FaultProxy(server_port, seed=7, rate=0.4) as proxy:
        ...  # connect the client to proxy.port: it meets every kind of fault
        proxy.heal()
        ...  # no more faults from here on

`in_thread` does the same for blocking tests. A fault is drawn from the seed, the request's method and path, and the
number of earlier requests with these: the order of requests to different paths does not matter. `inject` injects a
specific fault into the next requests.

The proxy speaks HTTP/1.1 with one request per connection and buffers whole responses: it does not support streams.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum

from everthread.testing.model_server.http import HttpRequest, HttpServer, read_chunks, read_request, respond

_HOST = "127.0.0.1"
_LOOK_S = 0.02
NOT_FORWARDED = ("connection", "content-length", "transfer-encoding", "expect", "keep-alive")
"""Connection-level headers, which are not forwarded."""


class Fault(StrEnum):
    DELAY = "delay"
    """Forward the request late."""
    CUT = "cut"
    """The server acts; the client receives half of the response."""
    LOST = "lost"
    """The server acts; the client receives nothing."""
    BUSY = "429"
    """Reply 429 without forwarding the request."""
    ERROR = "5xx"
    """Reply 500, 502 or 503 without forwarding the request."""
    HANG = "hang"
    """Forward nothing and reply nothing until `heal` closes the connection."""
    STALL = "stall"
    """The server acts; the client receives nothing until `heal` closes the connection."""


ACTED = frozenset({Fault.DELAY, Fault.CUT, Fault.LOST, Fault.STALL})
"""Faults after which the server has processed the request."""


class FaultProxy(HttpServer):
    def __init__(
        self,
        to_port: int,
        *,
        seed: int = 0,
        rate: float = 0.0,
        kinds: Sequence[Fault] = tuple(Fault),
        delay_s: float = 0.05,
    ) -> None:
        """Inject a fault into the share `rate` of the requests, each of one of the `kinds`."""
        super().__init__()
        self.to_port = to_port
        self._seed = seed
        self._rate = rate
        self._kinds = tuple(kinds)
        self._delay_s = delay_s
        self._counts: Counter[str] = Counter()
        self._queued: deque[Fault] = deque()
        self._healed = False
        self.injected: Counter[Fault] = Counter()
        self.passed = 0
        """Requests without a fault."""
        self.reached = 0
        """Requests that the server answered, even if the answer was lost."""

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def inject(self, fault: Fault, times: int = 1) -> None:
        """Inject this fault into the next requests, ahead of drawn faults."""
        self._queued.extend([fault] * times)

    def heal(self) -> None:
        """Stop injecting faults and close the connections that are kept waiting."""
        self._rate = 0.0
        self._queued.clear()
        self._healed = True

    def draw(self, method: str, path: str) -> Fault | None:
        """Draw the fault of a request. Each call counts as one request."""
        if self._queued:
            return self._queued.popleft()
        what = f"{method} {path.partition('?')[0]}"
        self._counts[what] += 1
        dice = random.Random(f"{self._seed} {what} {self._counts[what]}")
        return dice.choice(self._kinds) if dice.random() < self._rate else None

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        fault = self.draw(method, received.path)
        if fault is None:
            self.passed += 1
        else:
            self.injected[fault] += 1
        match fault:
            case Fault.BUSY:
                return await respond(writer, 429, b'{"error":"too many requests"}', {"Retry-After": "0"})
            case Fault.ERROR:
                status = (500, 502, 503)[self.injected[fault] % 3]
                return await respond(writer, status, b'{"error":"injected fault"}')
            case Fault.HANG:
                await self._keep_waiting(reader)
                return self._disconnect(writer)
            case Fault.DELAY:
                await asyncio.sleep(self._delay_s)
            case _:
                pass
        response = await self._forward(method, received)
        match fault:
            case Fault.LOST:
                return self._disconnect(writer)
            case Fault.STALL:
                await self._keep_waiting(reader)
                return self._disconnect(writer)
            case Fault.CUT:
                writer.write(response[: len(response) // 2])
                await writer.drain()
                return False
            case _:
                writer.write(response)
                await writer.drain()
                return False

    async def _forward(self, method: str, received: HttpRequest) -> bytes:
        """Return the server's whole response, or a 502 if the server is unreachable."""
        kept = {name: value for name, value in received.headers.items() if name not in NOT_FORWARDED}
        kept |= {"connection": "close", "content-length": str(len(received.body))}
        lines = [f"{method} {received.path} HTTP/1.1", *(f"{name}: {value}" for name, value in kept.items())]
        try:
            reader, writer = await asyncio.open_connection(_HOST, self.to_port)
        except ConnectionError:
            return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        try:
            writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + received.body)
            await writer.drain()
            response = await whole_response(reader, method)
            self.reached += 1
            return response
        finally:
            writer.close()

    async def _keep_waiting(self, reader: asyncio.StreamReader) -> None:
        """Wait until `heal`, or until the client disconnects."""
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            # Poll, because `heal` may be called from another thread.
            while not self._healed and not leaving.done():
                await asyncio.wait({leaving}, timeout=_LOOK_S)
        finally:
            leaving.cancel()

    def _disconnect(self, writer: asyncio.StreamWriter) -> bool:
        """Close the connection immediately, with a reset."""
        writer.transport.abort()
        return False


async def whole_response(reader: asyncio.StreamReader, method: str) -> bytes:
    """Read a response up to its declared end. Some servers keep the connection open after it."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kept = [line for line in lines if line.partition(":")[0].strip().lower() not in NOT_FORWARDED]
    if method == "HEAD" or first.split(" ")[1] in ("204", "304"):
        body = b""
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    lines = [first, *kept, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
