"""The connections to one back end. Only this module knows aiohttp, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import aiohttp
from msgspec import Struct

from everthread.domain.errors import Unavailable

ANSWER_BYTES_MAX = 64 * 1024 * 1024
CONNECTIONS_MAX = 8
# Less than servers keep a connection that nobody uses: one that they have just closed would cost an entry a pause.
_KEEP_S = 4.0


class Answer(Struct, frozen=True):
    status: int
    retry_after: str
    body: bytes


class Connections:
    def __init__(
        self, provider: str, address: str, headers: Mapping[str, str], connect_s: float, request_s: float
    ) -> None:
        self._provider = provider
        self._address = address
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=request_s, connect=connect_s)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def asked(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Mapping[str, str | int],
        headers: Mapping[str, str],
    ) -> Answer:
        session = self._session = self._session or self._opened()
        try:
            async with session.request(
                method,
                self._address + path,
                # As a file: a large body of bytes would go out in one piece, and hold everything else up.
                data=BytesIO(body) if body is not None else None,
                params=query,
                headers=headers,
                # A redirect would take the key along.
                allow_redirects=False,
            ) as response:
                return Answer(response.status, response.headers.get("Retry-After", ""), await self._whole(response))
        except TimeoutError:
            raise Unavailable(self._provider, f"no answer within {self._timeout.total:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(self._provider, f"can't be reached ({type(error.os_error).__name__})") from None
        # Their texts can name headers, and so the key: the name of the error is enough.
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(self._provider, f"broke off ({type(error).__name__})") from None

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        whole = bytearray()
        while chunk := await response.content.readany():
            whole += chunk
            if len(whole) > ANSWER_BYTES_MAX:
                raise Unavailable(self._provider, f"sent an answer of more than {ANSWER_BYTES_MAX} bytes")
        return bytes(whole)

    def _opened(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=_KEEP_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=self._timeout,
        )
