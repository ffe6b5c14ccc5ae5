"""What the fake memory services share: HTTP on loopback in a thread of its own, and faults on demand.

A fake is called one. It stands in for a service that can't be had on a test machine, and does what is known of the real
one, the unpleasant things first.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from everthread.testing.model_server.http import HttpServer, read_request, respond

START_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: Any


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, why: str = "") -> None:
        super().__init__(why)
        self.status = status


Handler = Callable[..., "Answered"]
Answered = tuple[int, Any]


def route(method: str, pattern: str, *, keeps: bool = False) -> Callable[[Handler], Handler]:
    """What a method of a fake answers to: `{name}` in the pattern is one part of the path. `keeps`: it stores words."""

    def marked(handler: Handler) -> Handler:
        parts = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
        handler.__dict__["route"] = (method, re.compile(parts), keeps)
        return handler

    return marked


@dataclass
class _Faults:
    failing: int = 0
    failing_with: int = 503
    rejecting: int = 0
    losing: int = 0
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    is_only_deaf: bool = False


class FakeBackEnd(HttpServer):
    """Use it as `with FakeX() as fake`: it runs beside whatever the test does, and `fake.address` is where.

    `fail_next`, `reject_next`, `lose_next`, `hang` and `heal` are what the contract kit of providers breaks it with.
    What it was sent while it hung is done when it is healed, though nobody waits for it any more.
    """

    invalid_status = 422
    scheme = "Bearer"
    """What stands before the key."""

    def __init__(self, *, key: str = "") -> None:
        super().__init__()
        self._key = key
        self._faults = _Faults()
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self.requests: list[Request] = []
        """Those that were answered, or would have been."""
        self._routes = [
            (*getattr(type(self), name).route, getattr(self, name))
            for name in dir(type(self))
            if hasattr(getattr(type(self), name), "route")
        ]

    # The thread it lives in -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="fake", daemon=True)
        self._thread.start()
        assert self._started.wait(START_S_MAX), "the fake did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._in_loop(lambda: self._end.set())
        self._thread.join(START_S_MAX)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._faults.answering.set()
        await self.start()
        self._started.set()
        await self._end.wait()
        await self.stop()

    def _in_loop(self, act: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(act)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after a while, as a queue does."""

        def locked() -> None:
            with self._lock:
                act()

        asyncio.get_running_loop().call_later(seconds, locked)

    # Faults -----------------------------------------------------------------------------------------------------------

    def fail_next(self, calls: int = 1, status: int = 503) -> None:
        self._faults.failing, self._faults.failing_with = calls, status

    def reject_next(self, calls: int = 1) -> None:
        self._faults.rejecting = calls

    def lose_next(self, calls: int = 1) -> None:
        """Of the requests that store words."""
        self._faults.losing = calls

    def hang(self, *, only_deaf: bool = False) -> None:
        """`only_deaf`: whoever asks is answered, and who tells something is not."""
        self._faults.is_only_deaf = only_deaf
        self._in_loop(self._faults.answering.clear)

    def heal(self) -> None:
        self._faults.failing = self._faults.rejecting = self._faults.losing = 0
        self._in_loop(self._faults.answering.set)

    # Answering --------------------------------------------------------------------------------------------------------

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        parts = urlsplit(received.path)
        if not self._faults.is_only_deaf or self._keeps(method, unquote(parts.path)):
            await self._faults.answering.wait()
        if self._key and received.headers.get("authorization") != f"{self.scheme} {self._key}":
            return await respond(writer, 401, b'{"detail":"no such key"}')
        try:
            body = msgspec.json.decode(received.body) if received.body else None
        except msgspec.DecodeError:
            return await respond(writer, self.invalid_status, b'{"detail":"this is no JSON"}')
        request = Request(method, unquote(parts.path), dict(parse_qsl(parts.query)), body)
        with self._lock:
            self.requests.append(request)
            (status, answer), is_lost = self._answer(request)
        if is_lost:
            return False
        return await respond(writer, status, msgspec.json.encode(answer) if answer is not None else b"")

    def _keeps(self, method: str, path: str) -> bool:
        return any(keeps and method == own and pattern.fullmatch(path) for own, pattern, keeps, _ in self._routes)

    def _answer(self, request: Request) -> tuple[Answered, bool]:
        """The answer, and whether it gets lost on its way."""
        faults = self._faults
        if faults.failing:
            faults.failing -= 1
            return (faults.failing_with, {"detail": "not now"}), False
        if faults.rejecting:
            faults.rejecting -= 1
            return (self.invalid_status, {"detail": "not like this"}), False
        for method, pattern, keeps, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if method == request.method and found:
                return self._handled(request, handler, found.groupdict(), keeps)
        return (404, {"detail": "no such path"}), False

    def _handled(
        self, request: Request, handler: Handler, parts: Mapping[str, str], keeps: bool
    ) -> tuple[Answered, bool]:
        try:
            answered = handler(request, **parts)
        except Refused as refused:
            return (refused.status, {"detail": str(refused)}), False
        if keeps and self._faults.losing:
            self._faults.losing -= 1
            return answered, True
        return answered, False


def likeness(query: str, text: str) -> float:
    """How much of the query's words a text holds: from 0 to 1."""
    wanted = set(_words(query))
    return len(wanted & set(_words(text))) / len(wanted) if wanted else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
