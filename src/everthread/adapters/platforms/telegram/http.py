"""How python-telegram-bot reaches the Bot API here: over aiohttp, which a gateway has anyway, and which costs less.

What goes wrong is told apart by what can be known of it: whether a call has certainly not reached the other side.
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
ANSWER_BYTES_MAX = 32_000_000
OK = 200


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float = 1.0


class _Refusal(msgspec.Struct, frozen=True):
    parameters: _Parameters = _Parameters()


class _Plain(msgspec.Struct, frozen=True):
    """Parameters of a call, as `_body` takes them."""

    parameters: dict[str, Any]
    contains_files: bool = False


class NotReached(NetworkError):
    """The call has certainly not been made."""


class TooLarge(TelegramError):
    """More than was asked for at most. What is there of it is thrown away."""


class TooMuch(TelegramError):
    """To be tried again, not before so many seconds have passed. The library's own error for it is being changed."""

    def __init__(self, seconds: float) -> None:
        super().__init__("too much at once")
        self.seconds = seconds


class Transport(BaseRequest):
    """All the calls of one bot. Opened when it is first needed, and again after it was closed."""

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
        return await self._made(method, url, _body(request_data), total_s, ANSWER_BYTES_MAX)

    async def file(self, url: str, bytes_max: int, read_s: float) -> bytes:
        """What is there. Of one that is larger than that, no more than that is ever in memory."""
        status, payload = await self._made("GET", url, {}, read_s, bytes_max)
        if status == OK:
            return payload
        if 400 <= status < 500:
            raise BadRequest(f"it can't be had any more ({status})")
        raise NetworkError(f"it can't be had now ({status})")

    async def _made(
        self, method: str, url: str, body: dict[str, Any], total_s: float, bytes_max: int
    ) -> tuple[int, bytes]:
        try:
            async with self._http().request(
                method,
                url,
                **body,
                timeout=aiohttp.ClientTimeout(total_s, connect=CONNECT_S),
                # Where it leads would be told the token.
                allow_redirects=False,
            ) as response:
                status, payload = response.status, await _whole(response, bytes_max)
        # What these say can have the address in it, and so the token: their names are enough.
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotReached(f"it can't be reached ({type(error).__name__})") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NetworkError(f"the connection broke off ({type(error).__name__})") from None
        if status == TOO_MANY_REQUESTS:
            raise TooMuch(self._wait_s(payload))
        return status, payload

    async def updates(self, url: str, parameters: dict[str, Any], read_s: float) -> list[dict[str, Any]]:
        """What came in, as it was written: the library would make nothing of a whole answer if it can't read one."""
        found = await self.post(url, cast("RequestData", _Plain(parameters)), read_timeout=read_s)
        try:
            updates = msgspec.convert(found, list[dict[str, Any]])
            numbered = all(isinstance(update.get("update_id"), int) for update in updates)
        except msgspec.ValidationError:
            updates, numbered = [], False
        if not numbered:
            raise TelegramError("it answered nonsense")
        return updates

    def _wait_s(self, payload: bytes) -> float:
        try:
            return max(msgspec.json.decode(payload, type=_Refusal).parameters.retry_after, 0.0)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 1.0

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise TelegramError("it answered nonsense") from None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=abrupt_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def abrupt_socket(address: tuple[Any, ...]) -> socket.socket:
    """One that takes along what has not gone out when it is closed, or whoever has it dies. Otherwise the system would
    go on for minutes to hand a message over which has long been found not to be there, and was sent again.
    """
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return made


async def _whole(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    whole = bytearray()
    while chunk := await response.content.readany():
        whole += chunk
        if len(whole) > bytes_max:
            raise TooLarge("it answered more than can be taken")
    return bytes(whole)


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
