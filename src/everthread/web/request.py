"""What every request is answered with: the gateway, who waits, and whether this is coming to its end."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from everthread.domain.model import Session
from everthread.gateway.server import Gateway
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.errors import HttpError

T = TypeVar("T")

BODY_BYTES_MAX = 2 * 1024 * 1024
BODY_S_MAX = 60.0
POURED_BYTES_MAX = 16 * 1024 * 1024
POUR_S_MAX = 2.0
_CLOSING = {"Connection": "close"}


class ApiCaller(Struct, frozen=True):
    """Somebody who may ask."""

    owner: str
    name: str
    """Of the token, or of the way in: with the owner, one of a kind."""
    token_hash: str = ""
    """Empty for whoever came in without a token."""

    def may_stay(self, uow: UnitOfWork) -> bool:
        """Whether they would still be let in."""
        return uow.api_keys.get(self.token_hash) is not None if self.token_hash else not uow.api_keys.are_any()


class ServerStopping(Struct, frozen=True):
    """No more comes: the process ends."""


class WebState:
    def __init__(self, gateway: Gateway, *, only_here: bool) -> None:
        """`only_here`: nobody but programs on this machine can reach it."""
        self.gateway = gateway
        self.only_here = only_here
        self.waits: set[asyncio.Queue[object]] = set()
        """Whoever waits for something that may never come is told of the end here."""
        self.followers: set[asyncio.Queue[object]] = set()
        """Whoever listens to what happens."""
        self.stopping = False
        self.listeners: dict[str, int] = {}
        """How many follow the events of an owner."""
        self.requests: dict[int, int] = {}
        """How many were answered with which status."""

    def wait(self) -> asyncio.Queue[object]:
        return self._queue(self.waits)

    def follow(self) -> asyncio.Queue[object]:
        return self._queue(self.followers)

    def _queue(self, among: set[asyncio.Queue[object]]) -> asyncio.Queue[object]:
        queue: asyncio.Queue[object] = asyncio.Queue()
        among.add(queue)
        if self.stopping:
            queue.put_nowait(ServerStopping())
        return queue

    def dismiss(self) -> None:
        """Whoever only listens has no more to wait for."""
        for queue in self.followers:
            queue.put_nowait(ServerStopping())

    def stop(self) -> None:
        self.stopping = True
        for queue in (*self.followers, *self.waits):
            queue.put_nowait(ServerStopping())


class ApiCall(Struct, frozen=True):
    """One request, from somebody who may ask it."""

    site: WebState
    request: Request
    who: ApiCaller | None = None
    session: Session | None = None
    """The one that its path names, which is the caller's."""

    @property
    def gateway(self) -> Gateway:
        return self.site.gateway

    @property
    def caller(self) -> ApiCaller:
        assert self.who is not None
        return self.who

    @property
    def guest(self) -> bool:
        """Whether it is somebody else than the owner at this machine."""
        return self.who is None or self.who.owner != self.gateway.settings.owner

    @property
    def its_session(self) -> Session:
        assert self.session is not None
        return self.session

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    async def body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """All that was sent, if it is not too much and comes in good time."""
        said = self.header("content-length") or ""
        parts: list[bytes] = []
        size = length if said.isdigit() and (length := int(said[:18])) > bytes_max else 0
        try:
            async with asyncio.timeout(BODY_S_MAX):
                async for part in self.request.stream():
                    size += len(part)
                    if size > bytes_max:
                        break
                    parts.append(part)
            if size > bytes_max:
                await self._pour_away()
        except TimeoutError:
            raise HttpError(408, "the body did not come in time", "timeout", _CLOSING) from None
        except ClientDisconnect:
            raise HttpError(400, "the body was cut off", "cut_off", _CLOSING) from None
        if size > bytes_max:
            raise HttpError(413, f"a body has at most {bytes_max:,} bytes", "too_large", _CLOSING)
        return b"".join(parts)

    async def _pour_away(self) -> None:
        """Read on for a while: whoever is cut off while still sending never reads the answer."""
        poured = 0
        try:
            async with asyncio.timeout(POUR_S_MAX):
                async for part in self.request.stream():
                    poured += len(part)
                    if poured > POURED_BYTES_MAX:
                        return
        except TimeoutError:
            # That was long enough: the answer is sent anyway, and the connection closed behind it.
            pass

    async def read(self, kind: type[T]) -> T:
        """The body as JSON of that shape."""
        return decode_body(await self.body(), kind)

    def number(self, name: str, usual: int, most: int) -> int:
        """A number in the query."""
        text = self.request.query_params.get(name)
        if text is None:
            return usual
        if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= most):
            raise HttpError(400, f"{name} must be a number from 1 to {most}", "bad_request")
        return int(text)


def decode_body(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"the body is not as it must be: {error}", "bad_request") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError(400, "the body is no JSON", "bad_json") from None
