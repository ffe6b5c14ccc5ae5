"""Requests of python-telegram-bot over aiohttp, which the gateway uses anyway and which is cheaper.

Errors tell whether a call has certainly not reached Telegram.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, cast

import aiohttp
import msgspec
from telegram.error import BadRequest, NetworkError, TelegramError
from telegram.request import BaseRequest, RequestData

CALL_S = 20.0
CONNECT_S = 10.0
TOO_MANY_REQUESTS = 429
RESPONSE_BYTES_MAX = 32_000_000
OK = 200


class _RateLimitParameters(msgspec.Struct, frozen=True):
    retry_after: float = 1.0


class _RateLimitBody(msgspec.Struct, frozen=True):
    parameters: _RateLimitParameters = _RateLimitParameters()


class _JsonData(msgspec.Struct, frozen=True):
    """Parameters of a call without files, in the shape of `RequestData`."""

    parameters: dict[str, Any]
    contains_files: bool = False


class NotConnected(NetworkError):
    """The call has certainly not reached Telegram."""


class ResponseTooLarge(TelegramError):
    """The response exceeds the given limit."""


class RateLimited(TelegramError):
    """Too many requests: retry after `retry_after_s`. Replaces the library's error, whose interface is changing."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("too many requests")
        self.retry_after_s = retry_after_s


class AiohttpRequest(BaseRequest):
    """All calls of one bot. Opens with the first call, and again after it was closed."""

    def __init__(self, call_s: float = CALL_S) -> None:
        self._call_s = call_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        return self._call_s

    async def initialize(self) -> None:
        pass

    async def shutdown(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = BaseRequest.DEFAULT_NONE,
        write_timeout: Any = BaseRequest.DEFAULT_NONE,
        connect_timeout: Any = BaseRequest.DEFAULT_NONE,
        pool_timeout: Any = BaseRequest.DEFAULT_NONE,
    ) -> tuple[int, bytes]:
        total_s = read_timeout if isinstance(read_timeout, int | float) else self._call_s
        return await self._request(method, url, _body(request_data), total_s, RESPONSE_BYTES_MAX)

    async def download(self, url: str, bytes_max: int, read_s: float) -> bytes:
        """Download a file. Raises `ResponseTooLarge` once more than `bytes_max` has arrived."""
        status, payload = await self._request("GET", url, {}, read_s, bytes_max)
        if status == OK:
            return payload
        if 400 <= status < 500:
            raise BadRequest(f"the file is no longer available ({status})")
        raise NetworkError(f"the file is not available now ({status})")

    async def _request(
        self, method: str, url: str, body: dict[str, Any], total_s: float, bytes_max: int
    ) -> tuple[int, bytes]:
        try:
            async with self._http().request(
                method,
                url,
                **body,
                timeout=aiohttp.ClientTimeout(total_s, connect=CONNECT_S),
                # A redirect would send the token to another server.
                allow_redirects=False,
            ) as response:
                status, payload = response.status, await _read_body(response, bytes_max)
        # The text of these errors can contain the URL, and so the token: report the type only.
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotConnected(f"it can't be reached ({type(error).__name__})") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NetworkError(f"the connection was lost ({type(error).__name__})") from None
        if status == TOO_MANY_REQUESTS:
            raise RateLimited(self._retry_after_s(payload))
        return status, payload

    async def updates(self, url: str, parameters: dict[str, Any], read_s: float) -> list[dict[str, Any]]:
        """Get updates as raw JSON: the library rejects the whole response if it can't parse one of them."""
        result = await self.post(url, cast("RequestData", _JsonData(parameters)), read_timeout=read_s)
        try:
            updates = msgspec.convert(result, list[dict[str, Any]])
            are_valid = all(isinstance(update.get("update_id"), int) for update in updates)
        except msgspec.ValidationError:
            updates, are_valid = [], False
        if not are_valid:
            raise TelegramError("its response can't be read")
        return updates

    def _retry_after_s(self, payload: bytes) -> float:
        try:
            return max(msgspec.json.decode(payload, type=_RateLimitBody).parameters.retry_after, 0.0)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 1.0

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise TelegramError("its response can't be read") from None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=abrupt_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def abrupt_socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket that discards unsent data when it is closed or its process dies.

    Otherwise the kernel would try for minutes to deliver a message that was found missing and sent again.
    """
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return opened


async def _read_body(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    body_bytes = bytearray()
    while chunk := await response.content.readany():
        body_bytes += chunk
        if len(body_bytes) > bytes_max:
            raise ResponseTooLarge("its response is too large")
    return bytes(body_bytes)


def _body(data: RequestData | None) -> dict[str, Any]:
    if data is None:
        return {}
    if not data.contains_files:
        return {"data": msgspec.json.encode(data.parameters), "headers": {"Content-Type": "application/json"}}
    form = aiohttp.FormData()
    for name, value in data.json_parameters.items():
        form.add_field(name, value)
    for name, (file_name, content, mime) in cast("dict[str, tuple[str, bytes, str]]", data.multipart_data).items():
        form.add_field(name, content, filename=file_name, content_type=mime)
    return {"data": form}
