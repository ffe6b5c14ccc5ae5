"""Minimal HTTP/1.1 server for the stubs: sequential requests on a connection, strict framing."""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

BODY_BYTES_MAX = 256 * 1024 * 1024
_HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    path: str
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes


class HttpServer:
    """Listen on loopback. Subclasses handle requests in `serve_one`."""

    port: int

    def __init__(self) -> None:
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    async def run(self) -> None:
        await self._server.serve_forever()

    @contextmanager
    def in_thread(self) -> Generator[Self]:
        """Serve from a loop in another thread, for tests that block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), loop).result(5)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)
            loop.close()

    def run_as_process(self, port: int) -> None:
        """Print the address as one line, then serve until interrupted."""

        async def serve() -> None:
            await self.start(port)
            print(self.announcement(), flush=True)
            try:
                await self.run()
            finally:
                await self.stop()

        with suppress(KeyboardInterrupt):
            asyncio.run(serve())

    def announcement(self) -> str:
        return str(self.port)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request. Return True if the connection can be reused."""
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self.serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            # Only `stop` cancels. asyncio reports a connection task that ends as cancelled as an error.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def process_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of command lines for a stub that runs as a process."""
    parser = argparse.ArgumentParser(prog=f"everthread.testing.{program}", description=description)
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0 chooses a free one, and the address is printed"
    )
    return parser


async def read_request(reader: asyncio.StreamReader) -> tuple[str, HttpRequest]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return method, HttpRequest(path, headers, await read_chunks(reader))
    length = min(int(headers.get("content-length", "0")), BODY_BYTES_MAX)
    return method, HttpRequest(path, headers, await reader.readexactly(length))


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if len(body) + size > BODY_BYTES_MAX:
            raise ConnectionError("the body is too long")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


async def respond(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> bool:
    sent = {"Content-Type": "application/json", "Content-Length": str(len(body))} | dict(headers or {})
    writer.write(head_of(status, sent) + body)
    await writer.drain()
    return True


def head_of(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Stub", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
