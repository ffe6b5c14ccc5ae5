"""Connection pool of one endpoint. The only module here that imports aiohttp, which is slow to import."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

import aiohttp

from everthread.adapters.models.sse import LINE_BYTES_MAX, StreamTooLarge
from everthread.domain.errors import ModelUnavailable

ERROR_BYTES_MAX = 64 * 1024
JOINED_BYTES_MAX = 64 * 1024
_DRAIN_S = 0.25


class StreamingPool:
    def __init__(self, base_url: str, headers: Mapping[str, str], connect_s: float, idle_s: float) -> None:
        self._base_url = base_url
        self._headers = headers
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def open_response(self, path: str, body: Sequence[bytes]) -> aiohttp.ClientResponse:
        """Post and return the response when its headers have arrived.

        Retried once: some servers close a connection that they promised to keep alive.
        """
        try:
            return await self._post(path, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post(path, body)

    def _post(self, path: str, body: Sequence[bytes]) -> aiohttp.client._RequestContextManager:  # pyright: ignore[reportPrivateUsage]
        if self._session is None:
            # No limit: there is one connection for each running turn.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s, sock_read=self._idle_s),
            )
        return self._session.post(
            self._base_url + path,
            data=_joined_pieces(body),
            headers={"Content-Length": str(sum(map(len, body)))},
            # A redirect would send the key to another server.
            allow_redirects=False,
        )

    @contextmanager
    def translate_errors(self, unavailable: Callable[[str], ModelUnavailable]) -> Generator[None, None, None]:
        """Translate every connection error into `ModelUnavailable`."""
        try:
            yield
        except StreamTooLarge as error:
            raise unavailable(f"sent {error}") from None
        except aiohttp.ConnectionTimeoutError:
            raise unavailable(f"could not be reached within {self._connect_s:g} s") from None
        except TimeoutError:
            raise unavailable(f"sent nothing for {self._idle_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise unavailable(f"can't be reached ({_connect_error(error)})") from None
        # The text of these errors can contain headers, and so the key: report the type only.
        except (aiohttp.ClientError, OSError) as error:
            raise unavailable(f"lost the connection ({type(error).__name__})") from None

    async def read_error_body(self, response: aiohttp.ClientResponse) -> bytes:
        """Read the start of an error's body, within a short time."""
        body = b""
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._connect_s):
                while len(body) < ERROR_BYTES_MAX and (chunk := await response.content.readany()):
                    body += chunk
        return body[:ERROR_BYTES_MAX]

    async def read_body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > LINE_BYTES_MAX:
                raise StreamTooLarge(f"a response of more than {LINE_BYTES_MAX} bytes")
        return bytes(body)

    async def drain(self, response: aiohttp.ClientResponse) -> None:
        """Read to the end, which follows the last event closely, so that the connection can be reused."""
        if response.content.at_eof():
            return
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_DRAIN_S):
                while await response.content.readany():
                    pass


def _connect_error(error: aiohttp.ClientConnectorError) -> str:
    # The system's messages are better than asyncio's. Errors of name resolution have negative numbers.
    number = error.os_error.errno
    return os.strerror(number) if number and number > 0 else error.strerror or type(error.os_error).__name__


async def _joined_pieces(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Join small pieces, which is cheaper than a socket write for each; a large piece is not copied."""
    small: list[bytes] = []
    for piece in body:
        if len(piece) < JOINED_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small.clear()
        yield piece
    if small:
        yield b"".join(small)
