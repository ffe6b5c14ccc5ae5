"""JSON requests to a memory service; every failure becomes a `ProviderError`.

No request is ever retried here. The journal retries entries, and a provider whose service can't deduplicate checks what
is stored before it writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everthread.domain.errors import BadConfig, Rejected, Unavailable

if TYPE_CHECKING:
    from everthread.adapters.memory.common.connection import ConnectionPool, HttpResponse

REQUEST_S_MAX = 30.0
CONNECT_S_MAX = 5.0
RETRY_AFTER_S_MAX = 300.0
# The same request may succeed later. 401 and 403 do once the right key is set.
_RETRYABLE = (401, 403, 408, 409, 412, 423, 425, 429)

T = TypeVar("T")
D = TypeVar("D")
Sleep = Callable[[float], Awaitable[None]]


class ResourceNotFound(Unavailable):
    """The service answered 404. Where that is not expected, the URL may be wrong, so the entry is retried."""


class JsonHttpClient:
    """Client of one service. Connections open with the first request, in the event loop that makes it."""

    def __init__(self, provider: str, url: str, *, key: str = "", scheme: str = "Bearer") -> None:
        if not url.startswith(("http://", "https://")):
            raise BadConfig(f"{provider}: {url[:100]!r} is not the URL of a server; expected https://HOST")
        if not key.isprintable() or " " in key:
            raise BadConfig(f"{provider}: the key has blanks or unprintable characters; correct it in the .env file")
        self._provider = provider
        self._url = url.rstrip("/")
        self._headers = {"User-Agent": "everthread", "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"{scheme} {key}"
        self._pool: ConnectionPool | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        into: type[T],
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send one request and decode the response as `into`.

        Raises `ResourceNotFound`, `Unavailable` or `Rejected`.
        """
        data = msgspec.json.encode(body) if body is not None else None
        response = await self._open_pool().request(method, path, data, query or {}, headers or {})
        if not 200 <= response.status <= 299:
            raise self._error(response)
        try:
            return msgspec.json.decode(response.body or b"null", type=into)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # The error's text may quote a conversation: report the type only.
            raise Unavailable(self._provider, f"its response can't be read ({type(error).__name__})") from None

    async def send(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, str | int] | None = None
    ) -> None:
        """Send one request and ignore the body of the response."""
        await self.request(method, path, body, into=Any, query=query)  # pyright: ignore[reportArgumentType] - any JSON

    async def delete(self, path: str) -> None:
        """Send a DELETE request. A resource that does not exist counts as deleted."""
        with suppress(ResourceNotFound):
            await self.send("DELETE", path)

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def _open_pool(self) -> ConnectionPool:
        if self._pool is None:
            # aiohttp: slow to import
            from everthread.adapters.memory.common.connection import ConnectionPool  # noqa: PLC0415

            self._pool = ConnectionPool(self._provider, self._url, self._headers, CONNECT_S_MAX, REQUEST_S_MAX)
        return self._pool

    def _error(self, response: HttpResponse) -> Exception:
        """Translate a status. The body stays out of the error: services quote what they were sent."""
        status, name = response.status, self._provider
        if status == 404:
            return ResourceNotFound(name, "not found (404); check the URL in the settings")
        if status in (401, 403):
            return Unavailable(name, f"does not accept the key ({status}); check the .env file", retry_after_s=60)
        if status in _RETRYABLE or status >= 500:
            return Unavailable(
                name, f"overloaded or broken ({status})", retry_after_s=_retry_after_s(response.retry_after)
            )
        if 300 <= status <= 399:
            return Unavailable(name, f"redirects elsewhere ({status}); check the URL in the settings")
        return Rejected(name, f"rejected the request ({status})")


async def unless_missing(request: Awaitable[T], otherwise: D) -> T | D:
    """Await a request; return `otherwise` if the service answers 404."""
    try:
        return await request
    except ResourceNotFound:
        return otherwise


def _retry_after_s(header: str) -> float | None:
    try:
        return min(max(float(header), 0.0), RETRY_AFTER_S_MAX)
    except ValueError:
        return None
