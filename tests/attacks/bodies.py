"""Malformed, huge and slow requests."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from contextlib import suppress

from tests.attacks.attempts import Attempts
from tests.attacks.target import Target

ANSWER_S_MAX = 20.0
FUZZED = 260
SLOW_CONNECTIONS = 300
RSS_GROWTH_MB_MAX = 250.0
_SEED = 7

_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1e400, 2**63, 2**200, "", "\0", "\ud800", "a" * 100_000, [], {}, [[]] * 50, {"a": {"a": {}}},
    "../../etc/passwd", "'; DROP TABLE sessions; --", "{{7*7}}", "${HOME}", "\u202e", "[DONE]", "data: [DONE]\n\n",
)  # fmt: skip


async def attack(target: Target) -> Attempts:
    attempts = Attempts("malformed, huge and slow requests")
    await _fuzz_json(target, attempts)
    await _send_raw(target, attempts)
    await _hold_connections(target, attempts)
    answer = await target.say("owner", "Are you there?")
    attempts.record(
        "the gateway serves the owner afterwards", "" if answer.status == 200 else f"status {answer.status}"
    )
    return attempts


async def _fuzz_json(target: Target, attempts: Attempts) -> None:
    """Send bodies with values of wrong types; an answer of 500 or more, or none, is a success."""
    choose = random.Random(_SEED)
    valid: tuple[tuple[str, dict[str, object]], ...] = (
        (
            "/v1/chat/completions",
            {"model": "everthread", "messages": [{"role": "user", "content": "hi"}], "stream": False},
        ),
        (f"/api/sessions/{target.sessions['bob']}/fork", {"title": "x", "key": "y", "as_it_was": False}),
        (f"/api/sessions/{target.sessions['bob']}/resume", {"key": "y"}),
    )
    for number in range(FUZZED):
        path, body = choose.choice(valid)
        broken = dict(body)
        broken[choose.choice([*broken, "tools", "tool_choice", "max_tokens", "n"])] = choose.choice(_VALUES)
        text = json.dumps(broken).encode()
        if number % 5 == 0:
            place = choose.randrange(len(text))
            text = text[:place] + bytes([choose.randrange(256)]) + text[place + 1 :]
        try:
            answer = await target.ask("POST", path, target.tokens["bob"], text, {"X-Session-Key": "fuzz"})
            # 502 and 503 report the model or the store, and 500 would be a bug.
            got = f"status {answer.status}" if answer.status == 500 else target.leaks(answer.everything, "bob")
        except (TimeoutError, OSError) as error:
            got = f"no answer ({type(error).__name__})"
        attempts.record(f"fuzzed body {number} at {path}", got)


def _raw_requests(token: str) -> list[tuple[str, bytes]]:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode()
    found = [
        ("length too small", head + b"Content-Length: 3\r\n\r\n" + b'{"messages": []}'),
        ("two lengths", head + b"Content-Length: 3\r\nContent-Length: 30\r\n\r\nabc"),
        (
            "length and chunks",
            head + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ),
        ("negative length", head + b"Content-Length: -1\r\n\r\n"),
        ("huge length", head + b"Content-Length: 99999999999999999999\r\n\r\n"),
        ("bad chunk", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
        ("endless chunk header", head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 100_000),
        ("obs-fold", head + b"X-A: 1\r\n  2\r\n\r\n"),
        ("nul in header", head + b"X-A: \x00\r\n\r\n"),
        ("no host", b"GET /api/sessions HTTP/1.1\r\n\r\n"),
        ("absolute path", b"GET http://localhost/api/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("http 0.9", b"GET /api/sessions\r\n"),
        ("http 2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("tls hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64),
        ("connect", b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("long line", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("many headers", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: 1\r\n" * 20_000 + b"\r\n"),
        ("upgrade", b"GET /api/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    ]
    for path in ("/../../etc/passwd", "//api/sessions", "/api/sessions/../sessions", "/hooks/../api/sessions",
                 "/health/../api/sessions", "/openapi.json/../metrics", "/health%2f..%2fmetrics", "/.env",
                 "/api/sessions?limit=-1", "/api/sessions?cursor=%ff", "/api%2fsessions", "/metrics/",
                 "/METRICS"):  # fmt: skip
        found.append((path, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))
    return found


async def _send_raw(target: Target, attempts: Attempts) -> None:
    for name, request in _raw_requests(target.tokens["bob"]):
        answer = await _exchange(target.port, request)
        status = answer.split(b" ", 2)[1:2]
        got = target.leaks(answer.decode(errors="replace"), "bob")
        if name.startswith("/") and status == [b"200"] and b'"status"' not in answer:
            got = "status 200"
        attempts.record(f"raw request: {name}", got or ("status 500" if status == [b"500"] else ""))


async def _exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(2.0):
                writer.write(request)
                await writer.drain()
                writer.write_eof()
                return await reader.read(1_000_000)
        return b""
    finally:
        writer.close()


async def _hold_connections(target: Target, attempts: Attempts) -> None:
    """Announce large bodies on many connections, send most of them and stop; the memory must stay bounded."""
    before = _rss_mb(target.process.pid)
    sockets: list[socket.socket] = []
    part = b"x" * 1_500_000
    try:
        for number in range(SLOW_CONNECTIONS):
            path = "/hooks/ci" if number % 2 else "/v1/chat/completions"
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1900000\r\nX-Timestamp: 1\r\n\r\n".encode()
            sockets.append(connection := socket.create_connection(("127.0.0.1", target.port), timeout=2))
            connection.setblocking(False)
            with suppress(BlockingIOError, OSError):
                connection.sendall(head)
        for _ in range(20):
            for connection in sockets:
                with suppress(BlockingIOError, OSError):
                    connection.send(part)
            await asyncio.sleep(0.05)
        grown = _rss_mb(target.process.pid) - before
        attempts.record(f"{SLOW_CONNECTIONS} slow bodies", f"{grown:.0f} MB more" if grown > RSS_GROWTH_MB_MAX else "")
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await target.say("owner", "Are you still there?")
        attempts.record("the owner is served beside slow bodies", "" if answer.status == 200 else str(answer.status))
    finally:
        for connection in sockets:
            connection.close()


def _rss_mb(process: int) -> float:
    with open(f"/proc/{process}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))
