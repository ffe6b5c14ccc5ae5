"""The connections of one endpoint. Only this module knows aiohttp, which takes long to import."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

import aiohttp

from everthread.adapters.models.sse import LINE_BYTES_MAX, TooMuch
from everthread.domain.errors import ModelUnavailable

REFUSAL_BYTES_MAX = 64 * 1024
COPIED_BYTES_MAX = 64 * 1024
_LINGER_S = 0.25


class Posting:
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

    async def begun(self, path: str, body: Sequence[bytes]) -> aiohttp.ClientResponse:
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
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s, sock_read=self._idle_s),
            )
        return self._session.post(
            self._base_url + path,
            data=_in_few_pieces(body),
            headers={"Content-Length": str(sum(map(len, body)))},
            # A redirect would take the key along.
            allow_redirects=False,
        )

    @contextmanager
    def failures_told(self, broken: Callable[[str], ModelUnavailable]) -> Generator[None, None, None]:
        """Every way in which a connection can fail, in our words."""
        try:
            yield
        except TooMuch as error:
            raise broken(f"sent {error}") from None
        except aiohttp.ConnectionTimeoutError:
            raise broken(f"could not be reached within {self._connect_s:g} s") from None
        except TimeoutError:
            raise broken(f"sent nothing for {self._idle_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise broken(f"can't be reached ({_why(error)})") from None
        # Their texts can name headers, and so the key: the name of the error is enough.
        except (aiohttp.ClientError, OSError) as error:
            raise broken(f"broke off ({type(error).__name__})") from None

    async def refusal(self, response: aiohttp.ClientResponse) -> bytes:
        """What it says is worth a little time and room, and no more."""
        body = b""
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._connect_s):
                while len(body) < REFUSAL_BYTES_MAX and (chunk := await response.content.readany()):
                    body += chunk
        return body[:REFUSAL_BYTES_MAX]

    async def whole(self, response: aiohttp.ClientResponse) -> bytes:
        whole = bytearray()
        while chunk := await response.content.readany():
            whole += chunk
            if len(whole) > LINE_BYTES_MAX:
                raise TooMuch(f"an answer of more than {LINE_BYTES_MAX} bytes")
        return bytes(whole)

    async def reach_end(self, response: aiohttp.ClientResponse) -> None:
        """The end comes right behind the last event; a connection that has reached it can be used again."""
        if response.content.at_eof():
            return
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_LINGER_S):
                while await response.content.readany():
                    pass


def _why(error: aiohttp.ClientConnectorError) -> str:
    # asyncio's own words for what the system has better ones for. Names that were not found have numbers below zero.
    number = error.os_error.errno
    return os.strerror(number) if number and number > 0 else error.strerror or type(error.os_error).__name__


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
