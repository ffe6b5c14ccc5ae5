"""Base of the fake memory services: HTTP on loopback in a thread, and faults on demand.

A fake stands in for a service that can't run on a test machine, and imitates what is known of the real one, above all
its faults.
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
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name in lower case."""


class ServiceError(Exception):
    """A response with an error status."""

    def __init__(self, status: int, why: str = "") -> None:
        super().__init__(why)
        self.status = status


Handler = Callable[..., "ServiceReply"]
ServiceReply = tuple[int, Any]


def route(method: str, pattern: str, *, stores: bool = False) -> Callable[[Handler], Handler]:
    """Route requests to a method: `{name}` in the pattern is one part of the path. `stores`: it stores texts."""

    def marked(handler: Handler) -> Handler:
        parts = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
        handler.__dict__["route"] = (method, re.compile(parts), stores)
        return handler

    return marked


@dataclass
class _Faults:
    passing: int = 0
    failing: int = 0
    failing_with: int = 503
    rejecting: int = 0
    losing: int = 0
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    is_only_deaf: bool = False


class FakeService(HttpServer):
    """Use it as `with FakeX() as fake`; the service then listens on `fake.address`.

    `fail_next`, `reject_next`, `lose_next`, `hang` and `heal` are the faults of the contract kit of providers.
    Requests received while it hangs are carried out when it is healed, even if their clients have disconnected.
    """

    invalid_status = 422
    scheme = "Bearer"
    """Authorization scheme before the key."""

    def __init__(self, *, key: str = "") -> None:
        super().__init__()
        self._key = key
        self._faults = _Faults()
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self.requests: list[Request] = []
        """All requests, including those whose response was lost."""
        self._routes = [
            (*getattr(type(self), name).route, getattr(self, name))
            for name in dir(type(self))
            if hasattr(getattr(type(self), name), "route")
        ]

    # Thread -------------------------------------------------------------------------------------------

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
        """Run a function later, as a queue does."""

        def locked() -> None:
            with self._lock:
                act()

        asyncio.get_running_loop().call_later(seconds, locked)

    # Faults -----------------------------------------------------------------------------------------------------------

    def fail_next(self, calls: int = 1, status: int = 503, *, after: int = 0) -> None:
        """Fail the next requests, or the ones that come `after` so many."""
        self._faults.passing, self._faults.failing, self._faults.failing_with = after, calls, status

    def reject_next(self, calls: int = 1) -> None:
        self._faults.rejecting = calls

    def lose_next(self, calls: int = 1) -> None:
        """Lose the responses of the next requests that store texts."""
        self._faults.losing = calls

    def hang(self, *, only_deaf: bool = False) -> None:
        """Stop answering. With `only_deaf`, requests that store nothing are still answered."""
        self._faults.is_only_deaf = only_deaf
        self._in_loop(self._faults.answering.clear)

    def heal(self) -> None:
        self._faults.passing = self._faults.failing = self._faults.rejecting = self._faults.losing = 0
        self._in_loop(self._faults.answering.set)

    # Responses --------------------------------------------------------------------------------------------------------

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        parts = urlsplit(received.path)
        if not self._faults.is_only_deaf or self._stores(method, unquote(parts.path)):
            await self._faults.answering.wait()
        if self._key and received.headers.get("authorization") != f"{self.scheme} {self._key}":
            return await respond(writer, 401, b'{"detail":"unknown key"}')
        try:
            body = msgspec.json.decode(received.body) if received.body else None
        except msgspec.DecodeError:
            return await respond(writer, self.invalid_status, b'{"detail":"invalid JSON"}')
        request = Request(method, unquote(parts.path), dict(parse_qsl(parts.query)), body, received.headers)
        with self._lock:
            self.requests.append(request)
            (status, answer), is_lost = self._answer(request)
        if is_lost:
            return False
        return await respond(writer, status, msgspec.json.encode(answer) if answer is not None else b"")

    def _stores(self, method: str, path: str) -> bool:
        return any(stores and method == own and pattern.fullmatch(path) for own, pattern, stores, _ in self._routes)

    def _answer(self, request: Request) -> tuple[ServiceReply, bool]:
        """Return the response, and whether it gets lost."""
        faults = self._faults
        if faults.passing:
            faults.passing -= 1
        elif faults.failing:
            faults.failing -= 1
            return (faults.failing_with, {"detail": "not now"}), False
        if faults.rejecting:
            faults.rejecting -= 1
            return (self.invalid_status, {"detail": "not like this"}), False
        for method, pattern, stores, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if method == request.method and found:
                return self._handled(request, handler, found.groupdict(), stores)
        return (404, {"detail": "no such path"}), False

    def _handled(
        self, request: Request, handler: Handler, parts: Mapping[str, str], stores: bool
    ) -> tuple[ServiceReply, bool]:
        try:
            answered = handler(request, **parts)
        except ServiceError as refused:
            return (refused.status, {"detail": str(refused)}), False
        if stores and self._faults.losing:
            self._faults.losing -= 1
            return answered, True
        return answered, False


def word_overlap(query: str, text: str) -> float:
    """Share of the query's words that a text contains."""
    wanted = set(_words(query))
    return len(wanted & set(_words(text))) / len(wanted) if wanted else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
