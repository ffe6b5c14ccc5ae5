"""The HTTP server below all stub servers."""

from __future__ import annotations

import asyncio

import pytest

from everthread.testing.model_server.http import HttpRequest, HttpServer, read_request, respond


class Echo(HttpServer):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, HttpRequest]] = []

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, request = await read_request(reader)
        self.requests.append((method, request))
        return await respond(writer, 200, request.body, {"X-Path": request.path})


async def exchange(server: HttpServer, *requests: bytes) -> list[bytes]:
    """Send requests on one connection and return the response bodies."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    bodies: list[bytes] = []
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
    writer.close()
    return bodies


async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    async with Echo() as server:
        plain = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nX-Name: Value\r\n\r\nhello"
        chunked = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
        assert await exchange(server, plain, chunked) == [b"hello", b"hello"]
        assert server.connections == 1
        assert [(method, request.path) for method, request in server.requests] == [("POST", "/a"), ("POST", "/b")]
        assert server.requests[0][1].headers["x-name"] == "Value"


async def test_a_connection_that_breaks_off_does_not_end_the_server() -> None:
    async with Echo() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe")
        writer.close()
        assert await exchange(server, b"GET / HTTP/1.1\r\n\r\n") == [b""]


async def test_stop_ends_open_connections() -> None:
    server = await Echo().start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.sleep(0)
    await server.stop()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", server.port)
