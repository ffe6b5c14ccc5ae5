"""What providers behind HTTP share: one JSON request at a time, and every way in which it can fail, in our words.

Nothing is ever sent twice from here. The journal tries again, and a back end that can't tell a repetition from news is
looked at first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everthread.domain.errors import BadConfig, Rejected, Unavailable

if TYPE_CHECKING:
    from everthread.adapters.memory.common.connection import Answer, Connections

REQUEST_S_MAX = 30.0
CONNECT_S_MAX = 5.0
RETRY_AFTER_S_MAX = 300.0
# Not here, or not now: the same request may be taken later. 401 and 403 pass when somebody puts the right key in.
_LATER = (401, 403, 408, 409, 412, 423, 425, 429)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class NotThere(Unavailable):
    """The back end has nothing under that name, or no more. Who did not expect that has the wrong address, perhaps."""


class Wire:
    """The connections to one back end, opened when first used in the loop that uses them."""

    def __init__(self, provider: str, address: str, *, key: str = "", scheme: str = "Bearer") -> None:
        if not address.startswith(("http://", "https://")):
            raise BadConfig(f"{provider}: {address[:100]!r} is no address of a server; expected https://HOST")
        if not key.isprintable() or " " in key:
            raise BadConfig(f"{provider}: its key is not one printable word; look at the .env file")
        self._provider = provider
        self._address = address.rstrip("/")
        self._headers = {"User-Agent": "everthread", "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"{scheme} {key}"
        self._connections: Connections | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        into: type[T],
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Ask once, and read the answer as `into`. Raises `NotThere`, `Unavailable` or `Rejected`."""
        sent = msgspec.json.encode(body) if body is not None else None
        answer = await self._connected().asked(method, path, sent, query or {}, headers or {})
        if not 200 <= answer.status <= 299:
            raise self._failure(answer)
        try:
            return msgspec.json.decode(answer.body or b"null", type=into)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # What it says may be anybody's words: the kind of mistake is enough.
            raise Unavailable(self._provider, f"sent what can't be read ({type(error).__name__})") from None

    async def tell(self, method: str, path: str, body: object = None) -> None:
        """Ask once, and don't care for what the answer says."""
        await self.ask(method, path, body, into=Any)  # pyright: ignore[reportArgumentType] - anything will do

    async def aclose(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.aclose()

    def _connected(self) -> Connections:
        if self._connections is None:
            # aiohttp: not before it is used
            from everthread.adapters.memory.common.connection import Connections  # noqa: PLC0415

            self._connections = Connections(self._provider, self._address, self._headers, CONNECT_S_MAX, REQUEST_S_MAX)
        return self._connections

    def _failure(self, answer: Answer) -> Exception:
        """What it says stays out of the error: back ends quote what they were sent."""
        status, name = answer.status, self._provider
        if status == 404:
            return NotThere(name, "has nothing there (404); check its address in the settings")
        if status in (401, 403):
            return Unavailable(name, f"does not take the key ({status}); look at the .env file", retry_after_s=60)
        if status in _LATER or status >= 500:
            return Unavailable(
                name, f"answers {status}: overloaded or broken", retry_after_s=_pause_s(answer.retry_after)
            )
        if 300 <= status <= 399:
            return Unavailable(name, f"leads elsewhere ({status}); check its address in the settings")
        return Rejected(name, f"will not take it ({status})")


def _pause_s(header: str) -> float | None:
    try:
        return min(max(float(header), 0.0), RETRY_AFTER_S_MAX)
    except ValueError:
        return None
