"""A proxy on loopback that spoils what goes through it: real TCP between a client and a server, deterministic by seed.

    async with FaultProxy(server_port, seed=7, rate=0.4) as proxy:
        ...  # the client is told proxy.port, and meets every kind of fault
        proxy.heal()
        ...  # from here on nothing is spoiled

`in_thread` is the same for tests that block. What is spoiled is drawn from the seed, the request's method and path, and
how often that was asked for: so the order in which requests of different paths arrive does not matter. `order` spoils
the next requests in one certain way.

It speaks HTTP/1.1, one request a connection, and holds a whole response in memory: nothing for streams.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum

from everthread.testing.model_server.http import HttpServer, Received, read_chunks, read_request, respond

_HOST = "127.0.0.1"
_LOOK_S = 0.02
NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding", "expect", "keep-alive")
"""Headers that are about one connection, and not about what is asked."""


class Fault(StrEnum):
    DELAY = "delay"
    """The request is passed on late."""
    CUT = "cut"
    """The server has acted, and half of its response arrives."""
    LOST = "lost"
    """The server has acted, and nothing of its response arrives."""
    BUSY = "429"
    """The server never hears of it."""
    ERROR = "5xx"
    """The same; one of 500, 502 and 503."""
    HANG = "hang"
    """The server never hears of it, and neither does the client, until `heal` cuts the connection."""
    STALL = "stall"
    """The server has acted, and the client waits in vain, until `heal` cuts the connection."""


ACTED = frozenset({Fault.DELAY, Fault.CUT, Fault.LOST, Fault.STALL})
"""Those after which the server has done what it was asked for."""


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
        """Of the requests, `rate` is spoiled, each in one of the `kinds`."""
        super().__init__()
        self.to_port = to_port
        self._seed = seed
        self._rate = rate
        self._kinds = tuple(kinds)
        self._delay_s = delay_s
        self._asked: Counter[str] = Counter()
        self._ordered: deque[Fault] = deque()
        self._healed = False
        self.spoiled: Counter[Fault] = Counter()
        self.passed = 0
        """Requests that went through unspoiled."""
        self.reached = 0
        """Requests that the server has answered, whatever became of the answer."""

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def order(self, fault: Fault, times: int = 1) -> None:
        """Spoil the next requests so, before anything is drawn."""
        self._ordered.extend([fault] * times)

    def spoil(self, rate: float) -> None:
        """Begin, or begin again, to spoil so much of what comes."""
        self._rate = rate
        self._healed = False

    def heal(self) -> None:
        """Spoil nothing more; whoever was kept waiting is cut off."""
        self._rate = 0.0
        self._ordered.clear()
        self._healed = True

    def drawn(self, method: str, path: str) -> Fault | None:
        """What happens to this request. Each question counts as one request."""
        if self._ordered:
            return self._ordered.popleft()
        what = f"{method} {path.partition('?')[0]}"
        self._asked[what] += 1
        dice = random.Random(f"{self._seed} {what} {self._asked[what]}")
        return dice.choice(self._kinds) if dice.random() < self._rate else None

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        fault = self.drawn(method, received.path)
        if fault is None:
            self.passed += 1
        else:
            self.spoiled[fault] += 1
        match fault:
            case Fault.BUSY:
                return await respond(writer, 429, b'{"error":"too many requests"}', {"Retry-After": "0"})
            case Fault.ERROR:
                status = (500, 502, 503)[self.spoiled[fault] % 3]
                return await respond(writer, status, b'{"error":"spoiled"}')
            case Fault.HANG:
                await self._keep_waiting(reader)
                return self._cut_off(writer)
            case Fault.DELAY:
                await asyncio.sleep(self._delay_s)
            case _:
                pass
        response = await self._passed_on(method, received)
        match fault:
            case Fault.LOST:
                return self._cut_off(writer)
            case Fault.STALL:
                await self._keep_waiting(reader)
                return self._cut_off(writer)
            case Fault.CUT:
                writer.write(response[: len(response) // 2])
                await writer.drain()
                return self._cut_off(writer, at_once=False)
            case _:
                writer.write(response)
                await writer.drain()
                return False

    async def _passed_on(self, method: str, received: Received) -> bytes:
        """The server's whole response; a 502 if it can't be reached, as a proxy answers."""
        kept = {name: value for name, value in received.headers.items() if name not in NOT_PASSED_ON}
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
        """Until `heal`, or until the client has given up."""
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            # Looked at now and then, since whoever heals may do it from another thread.
            while not self._healed and not leaving.done():
                await asyncio.wait({leaving}, timeout=_LOOK_S)
        finally:
            leaving.cancel()

    def _cut_off(self, writer: asyncio.StreamWriter, *, at_once: bool = True) -> bool:
        """End the connection: at once and with a reset, or after what was sent."""
        if at_once:
            writer.transport.abort()
        return False


async def whole_response(reader: asyncio.StreamReader, method: str) -> bytes:
    """Up to its end, as it says it, and not up to the connection's: some servers leave that open all the same."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kept = [line for line in lines if line.partition(":")[0].strip().lower() not in NOT_PASSED_ON]
    if method == "HEAD" or first.split(" ")[1] in ("204", "304"):
        body = b""
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    told = [first, *kept, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(told).encode("latin-1") + b"\r\n\r\n" + body
