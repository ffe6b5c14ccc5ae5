"""Connection pool of one service. The only module here that imports aiohttp, which is slow to import."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import aiohttp
from msgspec import Struct

from everthread.domain.errors import Unavailable

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
CONNECTIONS_MAX = 8
# Shorter than the idle timeout of servers: a request on a connection that the server has just closed would fail.
_KEEP_ALIVE_S = 4.0


class HttpResponse(Struct, frozen=True):
    status: int
    retry_after: str
    body: bytes


class ConnectionPool:
    def __init__(
        self, provider: str, url: str, headers: Mapping[str, str], connect_s_max: float, request_s_max: float
    ) -> None:
        self._provider = provider
        self._url = url
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=request_s_max, connect=connect_s_max)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Mapping[str, str | int],
        headers: Mapping[str, str],
    ) -> HttpResponse:
        session = self._session = self._session or self._open_session()
        try:
            async with session.request(
                method,
                self._url + path,
                # As a file: aiohttp writes a large `bytes` body in one piece, and blocks the event loop.
                data=BytesIO(body) if body is not None else None,
                params=query,
                headers=headers,
                # A redirect would send the key to another server.
                allow_redirects=False,
            ) as response:
                body = await self._read_body(response)
                return HttpResponse(response.status, response.headers.get("Retry-After", ""), body)
        except TimeoutError:
            raise Unavailable(self._provider, f"no answer within {self._timeout.total:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(self._provider, f"can't be reached ({type(error.os_error).__name__})") from None
        # The text of these errors can contain headers, and so the key: report the type only.
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(self._provider, f"connection lost ({type(error).__name__})") from None

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > RESPONSE_BYTES_MAX:
                raise Unavailable(self._provider, f"response larger than {RESPONSE_BYTES_MAX} bytes")
        return bytes(body)

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=self._timeout,
        )
