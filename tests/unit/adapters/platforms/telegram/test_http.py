"""Bot API requests over aiohttp: errors that tell whether a call has reached Telegram."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from telegram.error import BadRequest, NetworkError, TelegramError

from everthread.adapters.platforms.telegram.http import (
    AiohttpRequest,
    NotConnected,
    RateLimited,
    ResponseTooLarge,
    abrupt_socket,
)
from everthread.testing.telegram.protocol import AttachedFile, Fault
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers


@asynccontextmanager
async def emulated() -> AsyncIterator[tuple[AiohttpRequest, TelegramUsers, str]]:
    """Yield the requests of a bot, the users, and the URL of the bot's methods."""
    async with TelegramEmulator() as emulator, TelegramUsers(emulator.base_url) as users:
        request = AiohttpRequest(5.0)
        try:
            yield request, users, f"{emulator.base_url}/bot{emulator.token}"
        finally:
            await request.shutdown()


async def test_a_call_returns_the_status_and_the_body() -> None:
    async with emulated() as (request, _, url):
        status, body = await request.do_request(f"{url}/getMe", "POST")
        assert (status, request.parse_json_payload(body)["ok"]) == (200, True)
        await request.shutdown()
        assert (await request.do_request(f"{url}/getMe", "POST"))[0] == 200


async def test_errors_tell_a_call_that_was_not_made_from_one_that_broke_off() -> None:
    async with emulated() as (request, users, url):
        await users.fault(Fault("busy", "getMe", seconds=7))
        with pytest.raises(RateLimited) as limited:
            await request.do_request(f"{url}/getMe", "POST")
        assert limited.value.retry_after_s == 7
        await users.fault(Fault("drop_after", "getMe"))
        with pytest.raises(NetworkError) as lost:
            await request.do_request(f"{url}/getMe", "POST")
        assert not isinstance(lost.value, NotConnected)
        assert "42:TEST" not in str(lost.value)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = AiohttpRequest(1.0)
        with pytest.raises(NotConnected):
            await closed.do_request(f"http://127.0.0.1:{unused.getsockname()[1]}/bot42:TEST/getMe", "POST")
        await closed.shutdown()


async def test_a_download_is_limited_and_a_missing_file_is_refused() -> None:
    async with emulated() as (request, users, url):
        await users.say(7, file=AttachedFile("document", b"x" * 100, "a.bin"))
        files = url.replace("/bot42", "/file/bot42")
        assert await request.download(f"{files}/documents/file_0.bin", 100, 5.0) == b"x" * 100
        with pytest.raises(ResponseTooLarge):
            await request.download(f"{files}/documents/file_0.bin", 99, 5.0)
        with pytest.raises(BadRequest, match="404"):
            await request.download(f"{files}/missing", 100, 5.0)


async def test_updates_are_returned_as_raw_json() -> None:
    async with emulated() as (request, users, url):
        await users.odd(b'{"date": "no library can parse this"}')
        [update] = await request.updates(f"{url}/getUpdates", {"timeout": 0}, 5.0)
        assert update["message"] == {"date": "no library can parse this"}


def test_a_payload_that_is_not_json_is_an_error() -> None:
    with pytest.raises(TelegramError, match="can't be read"):
        AiohttpRequest.parse_json_payload(b"<html>")


def test_a_socket_discards_unsent_data_when_it_is_closed() -> None:
    with abrupt_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as opened:
        assert struct.unpack("ii", opened.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
