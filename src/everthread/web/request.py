"""The request context of every route: the gateway, the caller, and the state of the server."""

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
DISCARDED_BYTES_MAX = 16 * 1024 * 1024
DISCARD_S_MAX = 2.0
_CLOSING = {"Connection": "close"}


class ApiCaller(Struct, frozen=True):
    """An authorized caller."""

    owner: str
    name: str
    """Name of the token, or of the local access. Unique together with the owner."""
    token_hash: str = ""
    """Empty for local access without a token."""

    def may_stay(self, uow: UnitOfWork) -> bool:
        """Return true if the caller is still authorized."""
        return uow.api_keys.get(self.token_hash) is not None if self.token_hash else not uow.api_keys.are_any()


class ServerStopping(Struct, frozen=True):
    """The process is stopping; nothing more is sent."""


class WebState:
    def __init__(self, gateway: Gateway, *, only_here: bool) -> None:
        """`only_here`: the server listens on a loopback address."""
        self.gateway = gateway
        self.only_here = only_here
        self.waits: set[asyncio.Queue[object]] = set()
        """Queues of requests that wait for an answer."""
        self.followers: set[asyncio.Queue[object]] = set()
        """Queues of the listeners of `/api/events`."""
        self.stopping = False
        self.listeners: dict[str, int] = {}
        """The number of event listeners by owner."""
        self.requests: dict[int, int] = {}
        """The number of answered requests by status."""

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
        """End the event streams."""
        for queue in self.followers:
            queue.put_nowait(ServerStopping())

    def stop(self) -> None:
        self.stopping = True
        for queue in (*self.followers, *self.waits):
            queue.put_nowait(ServerStopping())


class ApiCall(Struct, frozen=True):
    """One request of an authorized caller."""

    site: WebState
    request: Request
    who: ApiCaller | None = None
    session: Session | None = None
    """The session in the path; it belongs to the caller."""

    @property
    def gateway(self) -> Gateway:
        return self.site.gateway

    @property
    def caller(self) -> ApiCaller:
        assert self.who is not None
        return self.who

    @property
    def guest(self) -> bool:
        """Return true if the caller is not the owner of this installation."""
        return self.who is None or self.who.owner != self.gateway.settings.owner

    @property
    def its_session(self) -> Session:
        assert self.session is not None
        return self.session

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    async def body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Read the body within the limits of size and time."""
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
                await self._discard_rest()
        except TimeoutError:
            raise HttpError(408, "the body did not come in time", "timeout", _CLOSING) from None
        except ClientDisconnect:
            raise HttpError(400, "the body was cut off", "cut_off", _CLOSING) from None
        if size > bytes_max:
            raise HttpError(413, f"a body has at most {bytes_max:,} bytes", "too_large", _CLOSING)
        return b"".join(parts)

    async def _discard_rest(self) -> None:
        """Read on for a while: a client whose connection is closed while it sends never reads the answer."""
        discarded = 0
        try:
            async with asyncio.timeout(DISCARD_S_MAX):
                async for part in self.request.stream():
                    discarded += len(part)
                    if discarded > DISCARDED_BYTES_MAX:
                        return
        except TimeoutError:
            # Send the answer now, then close the connection.
            pass

    async def read(self, kind: type[T]) -> T:
        """Decode the body as JSON of that type."""
        return decode_body(await self.body(), kind)

    def number(self, name: str, usual: int, most: int) -> int:
        """Read a number from the query string."""
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
