"""What the clients share: a streamed POST, and every way in which one can fail, as an error of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from everthread.adapters.models.wire.failures import Endpoint, ErrorObject, failure, retry_after_s, said_in
from everthread.adapters.models.wire.halves import decoded
from everthread.adapters.models.wire.sse import LINE_BYTES_MAX, Event, EventParser, TooMuch
from everthread.domain.errors import BadConfig, ModelError, ModelUnavailable

CONNECT_S_MAX = 10.0
IDLE_S_MAX = 120.0
REFUSAL_BYTES_MAX = 64 * 1024
COPIED_BYTES_MAX = 64 * 1024
NO_TEXT = "(no text)"
"""Sent for an empty message: endpoints refuse those."""
SECRET_CHARS_MIN = 12
_LINGER_S = 0.25

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
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=idle_s)
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._session: aiohttp.ClientSession | None = None

    async def events(
        self, path: str, body: Sequence[bytes], is_last: Callable[[Event], bool]
    ) -> AsyncGenerator[Event, None]:
        """Send the pieces of the body, yield what comes back up to the last event or the end of the stream.

        An answer that is no stream is yielded as one event. Closing this closes the connection.
        """
        with self._failures_told():
            async with await self._begun(path, body) as response:
                if not 200 <= response.status <= 299:
                    raise await self._refusal(response)
                if response.content_type == "application/json":
                    yield await _whole(response)
                    return
                parser = EventParser()
                while chunk := await response.content.readany():
                    for event in parser.feed(chunk):
                        yield event
                        if is_last(event):
                            await _reach_end(response)
                            return
                for event in parser.end():
                    yield event

    @contextmanager
    def _failures_told(self) -> Generator[None, None, None]:
        """Every way in which a connection can fail, in our words."""
        try:
            yield
        except TooMuch as error:
            raise self.broken(f"sent {error}") from None
        except aiohttp.ConnectionTimeoutError:
            raise self.broken(f"could not be reached within {self._connect_s:g} s") from None
        except TimeoutError:
            raise self.broken(f"sent nothing for {self._idle_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise self.broken(f"can't be reached ({error.strerror or type(error.os_error).__name__})") from None
        # Their texts can name headers, and so the key: the name of the error is enough.
        except (aiohttp.ClientError, OSError) as error:
            raise self.broken(f"broke off ({type(error).__name__})") from None

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
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _begun(self, path: str, body: Sequence[bytes]) -> aiohttp.ClientResponse:
        """The response, once it has begun. Some servers end a connection that they said they would keep."""
        try:
            return await self._post(path, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post(path, body)

    def _post(self, path: str, body: Sequence[bytes]) -> aiohttp.client._RequestContextManager:  # pyright: ignore[reportPrivateUsage]
        if self._session is None:
            # As many connections as there are turns; cookies would be a memory that nobody asked for.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=self._timeout,
            )
        return self._session.post(
            self._base_url + path,
            data=_in_few_pieces(body),
            headers={"Content-Length": str(sum(map(len, body)))},
            # A redirect would take the key along.
            allow_redirects=False,
        )

    async def _refusal(self, response: aiohttp.ClientResponse) -> ModelError:
        body = b""
        # What it says is worth a little time and room, and no more.
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._connect_s):
                while len(body) < REFUSAL_BYTES_MAX and (chunk := await response.content.readany()):
                    body += chunk
        wait = retry_after_s(response.headers)
        return failure(self._endpoint, response.status, said_in(body[:REFUSAL_BYTES_MAX]), wait)


async def _in_few_pieces(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Joining small pieces costs less than a write to the socket for each; copying a large one costs more."""
    small: list[bytes] = []
    for piece in body:
        if len(piece) < COPIED_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small.clear()
        yield piece
    if small:
        yield b"".join(small)


async def _whole(response: aiohttp.ClientResponse) -> Event:
    whole = bytearray()
    while chunk := await response.content.readany():
        whole += chunk
        if len(whole) > LINE_BYTES_MAX:
            raise TooMuch(f"an answer of more than {LINE_BYTES_MAX} bytes")
    return Event(b"", bytes(whole))


async def _reach_end(response: aiohttp.ClientResponse) -> None:
    """The end comes right behind the last event; a connection that has reached it can be used again."""
    if response.content.at_eof():
        return
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_LINGER_S):
            while await response.content.readany():
                pass


def _host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfig(f"{base_url[:100]!r} is no base URL of a model; expected https://HOST/PATH")
    return parts.hostname + port
