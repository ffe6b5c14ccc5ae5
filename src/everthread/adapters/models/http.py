"""What the clients share: a streamed POST, and every way in which one can fail, as an error of ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from everthread.adapters.models.errors import Endpoint, ErrorObject, failure, retry_after_s, said_in
from everthread.adapters.models.sse import Event, EventParser, decoded
from everthread.domain.errors import BadConfig, ModelError, ModelUnavailable

CONNECT_S_MAX = 10.0
IDLE_S_MAX = 120.0
NO_TEXT = "(no text)"
"""Sent for an empty message: endpoints refuse those."""
SECRET_CHARS_MIN = 12

if TYPE_CHECKING:
    from everthread.adapters.models.connection import Posting

T = TypeVar("T")

__all__ = ["CONNECT_S_MAX", "IDLE_S_MAX", "NO_TEXT", "ErrorObject", "Event", "Wire"]


class Wire:
    """One endpoint's connections. Opened when first used, in the loop that uses it."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        key: str,
        key_name: str,
        needs_key: bool = False,
        connect_s: float = CONNECT_S_MAX,
        idle_s: float = IDLE_S_MAX,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        # Any header may hold a secret; a short word in one is none.
        words = (word for value in headers.values() for word in value.split() if len(word) >= SECRET_CHARS_MIN)
        self._endpoint = Endpoint(_host(base_url), key_name, key, tuple(words))
        if not all(value.isprintable() for value in headers.values()):
            raise BadConfig(f"the key or a header for {self._endpoint.name} is not one printable line: see {key_name}")
        self._headers = {
            "User-Agent": "everthread",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # A compressed stream would be held back until there is enough of it.
            "Accept-Encoding": "identity",
            **headers,
        }
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._lacks_key = needs_key and not key
        self._posting: Posting | None = None

    async def events(
        self, path: str, body: Sequence[bytes], is_last: Callable[[Event], bool]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Send the pieces of the body, yield what comes back up to the last event or the end of the stream: what has
        arrived together is yielded together.

        An answer that is no stream is yielded as one event. Closing this closes the connection.
        """
        if self._lacks_key:
            # What somebody has said need not travel to be refused.
            raise failure(self._endpoint, 401, "")
        posting = self._connected()
        with posting.failures_told(self.broken):
            async with await posting.begun(path, body) as response:
                if not 200 <= response.status <= 299:
                    said = await posting.refusal(response)
                    raise failure(self._endpoint, response.status, said_in(said), retry_after_s(response.headers))
                if response.content_type == "application/json":
                    yield [Event(b"", await posting.whole(response))]
                    return
                parser = EventParser()
                while chunk := await response.content.readany():
                    if events := parser.feed(chunk):
                        yield events
                        if any(map(is_last, events)):
                            await posting.reach_end(response)
                            return
                yield parser.end()

    def decoded(self, event: Event, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoded(event.data, decoder)
        except (ValueError, RecursionError) as error:
            raise self.broken(f"sent what can't be read ({type(error).__name__})") from None

    def broken(self, what: str) -> ModelUnavailable:
        """The error for an endpoint that did not do its part."""
        return ModelUnavailable(f"{self._endpoint.name} {what}")

    def failure(self, error: ErrorObject | str) -> ModelError:
        """The error for one that was told inside a stream."""
        if isinstance(error, str):
            return failure(self._endpoint, 500, error)
        return failure(self._endpoint, error.status, error.said)

    async def aclose(self) -> None:
        if self._posting is not None:
            await self._posting.aclose()

    def _connected(self) -> Posting:
        if self._posting is None:
            from everthread.adapters.models.connection import Posting  # noqa: PLC0415 - aiohttp: not before it is used

            self._posting = Posting(self._base_url, self._headers, self._connect_s, self._idle_s)
        return self._posting


def _host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfig(f"{base_url[:100]!r} is no base URL of a model; expected https://HOST/PATH")
    return parts.hostname + port
