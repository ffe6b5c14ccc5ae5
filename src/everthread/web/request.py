"""The request context of every route: the gateway, the caller, and the state of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from everthread.commands.registry import ParsedCommand, UnknownCommand
from everthread.config.webhook_secrets import enabled_webhooks
from everthread.domain.model import Session
from everthread.gateway.inbound import bucket_of
from everthread.gateway.rate_limit import hook_bucket
from everthread.gateway.server import Gateway
from everthread.store.unit_of_work import UnitOfWork
from everthread.web.auth_failures import AuthFailures
from everthread.web.body_budget import BodyBudget, HeldBody
from everthread.web.client_address import TrustedProxies, client_address
from everthread.web.errors import AuthenticationFailed, HttpError, stopping

T = TypeVar("T")

BODY_BYTES_MAX = 2 * 1024 * 1024
BODY_S_MAX = 60.0
PART_BYTES = 32 * 1024
DISCARDED_BYTES_MAX = 16 * 1024 * 1024
DISCARD_S_MAX = 2.0
_CLOSING = {"Connection": "close"}


class ApiCaller(Struct, frozen=True):
    """An authorized caller."""

    owner: str
    name: str
    """Name of the token, or `local` if none is needed. Unique together with the owner."""
    token_hash: str = ""
    """Empty if no token is needed: `gateway.http.auth` is `none`."""
    read_only: bool = False
    """May only read."""

    def may_stay(self, uow: UnitOfWork, now: float) -> bool:
        """Return true if the caller is still authorized."""
        if not self.token_hash:
            return True
        key = uow.api_keys.get(self.token_hash)
        return key is not None and key.is_valid(now)


class ServerStopping(Struct, frozen=True):
    """The process is stopping; nothing more is sent."""


class WebState:
    """The state that all requests share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.trusted_proxies = TrustedProxies(gateway.settings.gateway.http.trusted_proxies)
        self.auth_failures = AuthFailures(gateway.clock)
        self.waiting: set[asyncio.Queue[Any]] = set()
        """Queues of requests that wait for an answer."""
        self.followers: set[asyncio.Queue[Any]] = set()
        """Queues of the listeners of `/api/events`."""
        self.is_stopping = False
        self.webhooks = enabled_webhooks(gateway.settings)
        self.bodies = BodyBudget(gateway.settings.owner)
        self.listeners: dict[str, int] = {}
        """The number of event listeners by owner."""
        self.requests: dict[int, int] = {}
        """The number of answered requests by status."""

    def address_of(self, request: Request) -> str:
        """Return the address of the client, behind trusted proxies that of their client."""
        peer = request.client.host if request.client is not None else None
        return client_address(peer, request.headers.getlist("x-forwarded-for"), self.trusted_proxies)

    def add_queue(self, queues: set[asyncio.Queue[Any]]) -> asyncio.Queue[Any]:
        """Add a queue to `waiting` or `followers`. The request removes it."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        queues.add(queue)
        if self.is_stopping:
            queue.put_nowait(ServerStopping())
        return queue

    def end_event_streams(self) -> None:
        self.auth_failures.stop()
        for queue in self.followers:
            queue.put_nowait(ServerStopping())

    def stop(self) -> None:
        self.is_stopping = True
        self.auth_failures.stop()
        for queue in (*self.followers, *self.waiting):
            queue.put_nowait(ServerStopping())


class ApiCall(Struct, frozen=True):
    """One request of an authorized caller."""

    state: WebState
    request: Request
    held: HeldBody
    """The bytes of its body in memory. They are released when its message is stored, or the request answered."""
    authenticated: ApiCaller | None = None
    path_session: Session | None = None
    """The session in the path; it belongs to the caller."""

    @property
    def gateway(self) -> Gateway:
        return self.state.gateway

    @property
    def caller(self) -> ApiCaller:
        assert self.authenticated is not None
        return self.authenticated

    @property
    def is_guest(self) -> bool:
        """Return true if the caller is not the owner of this installation."""
        return self.authenticated is None or self.authenticated.owner != self.gateway.settings.owner

    @property
    def session(self) -> Session:
        assert self.path_session is not None
        return self.path_session

    @property
    def client_address(self) -> str:
        """The address for the log, for slowing down and for limits. It decides nothing about access."""
        return self.state.address_of(self.request)

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    def check_limits(self, found: ParsedCommand | UnknownCommand | None = None, *, hook: str = "") -> None:
        """Count one request that costs something, on all platforms together. `found` is its command, if it is one.

        A delivery of `hook` counts for this webhook, and not for a person.
        """
        gateway = self.gateway
        if gateway.draining:
            raise stopping()
        if hook:
            bucket = hook_bucket(hook)
            refusal = gateway.rate_limiter.refusal(bucket, gateway.clock.elapsed())
        else:
            name = found.command.name if isinstance(found, ParsedCommand) else ""
            bucket = bucket_of(self.caller.owner, name)
            refusal = gateway.inbound.over_limit(self.caller.owner, name)
        if refusal is not None:
            gateway.inbound.rejected += 1
            wait = {"Retry-After": str(gateway.rate_limiter.wait_s(bucket))}
            raise HttpError(429, refusal or "Too many messages; this one was not stored.", "too_many", wait)

    async def may_stay(self) -> bool:
        """Return true if the caller is still authorized: a token can be revoked or expire during its request."""
        caller, now = self.authenticated, self.gateway.clock.now()
        if caller is None or not caller.token_hash:
            return True
        return await self.gateway.store.read_inline(lambda uow: caller.may_stay(uow, now))

    async def check_caller(self) -> None:
        """Raise `AuthenticationFailed` if the caller is no longer authorized."""
        if not await self.may_stay():
            raise AuthenticationFailed("This token was revoked, or has expired.", "token revoked or expired")

    async def body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Read the body within the limits of size, time, and bytes of all bodies together, then check the caller again.

        Parts are counted as they arrive and not as announced: announcing a large body must take no room from others.
        """
        announced = self.header("content-length") or ""
        too_large = announced.isdigit() and int(announced[:18]) > bytes_max
        stream, parts, size = self.request.stream(), [bytearray()], 0
        try:
            async with asyncio.timeout(BODY_S_MAX):
                if not too_large:
                    async for part in stream:
                        size += len(part)
                        if too_large := size > bytes_max:
                            break
                        self.held.add(len(part))
                        # Parts of about one size: a growing array would be moved often, and leave holes in the memory.
                        if len(parts[-1]) >= PART_BYTES:
                            parts.append(bytearray())
                        parts[-1] += part
            if not too_large:
                await self.check_caller()
                return b"".join(parts)
            problem = HttpError(413, f"A body has at most {bytes_max:,} bytes.", "too_large", _CLOSING)
        except TimeoutError:
            raise HttpError(408, "The body did not arrive in time.", "timeout", _CLOSING) from None
        except ClientDisconnect:
            raise HttpError(400, "The body was cut off.", "cut_off", _CLOSING) from None
        except HttpError as error:
            problem = error
        parts.clear()
        self.held.release()
        await _discard_rest(stream)
        raise problem

    async def read(self, kind: type[T]) -> T:
        """Decode the body as JSON of that type."""
        return decode_body(await self.body() or b"{}", kind)

    def query_number(self, name: str, default: int, number_max: int) -> int:
        """Read a number from the query string."""
        text = self.request.query_params.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= number_max):
            raise HttpError(400, f"{name} must be a number from 1 to {number_max}.", "bad_request")
        return int(text)


async def _discard_rest(stream: AsyncGenerator[bytes, None]) -> None:
    """Read on for a while: a client whose connection is closed while it sends never reads the answer."""
    discarded = 0
    try:
        async with asyncio.timeout(DISCARD_S_MAX):
            async for part in stream:
                discarded += len(part)
                if discarded > DISCARDED_BYTES_MAX:
                    return
    except (TimeoutError, ClientDisconnect):
        # Send the answer now, then close the connection.
        pass


def decode_body(body: bytes, kind: Any = Any) -> Any:
    """Decode JSON of that type. Raise `HttpError`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"Invalid body: {error}", "bad_request") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError(400, "The body is not JSON.", "bad_json") from None
