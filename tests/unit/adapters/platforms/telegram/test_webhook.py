"""Updates received by a webhook: authentication, and the status that makes Telegram send an update again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
import telegram
from tests.runtime import until
from tests.servers.free_port import free_port

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import AiohttpRequest
from everthread.adapters.platforms.telegram.updates import UnparsedUpdate
from everthread.adapters.platforms.telegram.webhook import SECRET_HEADER, serve
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import PlatformUnavailable, StoreBusy
from everthread.testing.telegram.server import TelegramEmulator

Handler = Callable[[telegram.Update | UnparsedUpdate], Awaitable[None]]
UPDATE = b'{"update_id": 5}'


@asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[tuple[Callable[..., Awaitable[int]], asyncio.Future[None]]]:
    """A function that posts a body and returns the status, and the task that serves."""
    async with TelegramEmulator() as emulator, aiohttp.ClientSession() as client:
        http, port = AiohttpRequest(5.0), free_port()
        bot = telegram.Bot(emulator.token, f"{emulator.base_url}/bot", request=http, get_updates_request=http)
        url = f"http://127.0.0.1:{port}/hook"
        account = PlatformAccount("telegram", webhook_url=url, webhook_host="127.0.0.1", webhook_port=port)
        task = asyncio.ensure_future(serve(bot, account, "s3cret", ErrorTranslator(emulator.token, 5.0), handle))

        async def post(body: bytes, secret: str = "s3cret") -> int:
            async with client.post(url, data=body, headers={SECRET_HEADER: secret}) as response:
                return response.status

        try:
            await until(lambda: emulator.webhook.url or task.done())
            yield post, task
        finally:
            task.cancel()
            await asyncio.wait({task})
            await http.shutdown()


async def test_only_requests_with_the_secret_are_handled() -> None:
    handled: list[int] = []

    async def handle(update: telegram.Update | UnparsedUpdate) -> None:
        handled.append(update.update_id)

    async with served(handle) as (post, _):
        assert [await post(UPDATE, secret) for secret in ("", "wrong", "s3cret")] == [403, 403, 200]
    assert handled == [5]


async def test_a_body_that_is_no_update_is_dropped_and_not_sent_again() -> None:
    async def handle(update: telegram.Update | UnparsedUpdate) -> None:
        raise AssertionError

    async with served(handle) as (post, _):
        assert [await post(body) for body in (b"<html>", b"{}", b'{"update_id": "5"}')] == [200] * 3


async def test_an_update_that_could_not_be_stored_is_sent_again() -> None:
    failures = [StoreBusy("locked")]

    async def handle(update: telegram.Update | UnparsedUpdate) -> None:
        if failures:
            raise failures.pop()

    async with served(handle) as (post, task):
        assert [await post(UPDATE), await post(UPDATE)] == [503, 200]
        assert not task.done()


async def test_an_unexpected_error_ends_the_listener_with_that_error() -> None:
    async def handle(update: telegram.Update | UnparsedUpdate) -> None:
        raise LookupError("a bug")

    async with served(handle) as (post, task):
        assert await post(UPDATE) == 503
        await asyncio.wait({task}, timeout=5.0)
        assert isinstance(task.exception(), LookupError)


async def test_a_port_that_is_taken_is_reported_with_the_setting_to_change() -> None:
    async def handle(update: telegram.Update | UnparsedUpdate) -> None: ...

    async with TelegramEmulator() as emulator:
        bot = telegram.Bot(emulator.token, f"{emulator.base_url}/bot")
        account = PlatformAccount(
            "telegram", webhook_url="http://127.0.0.1/", webhook_host="127.0.0.1", webhook_port=emulator.port
        )
        with pytest.raises(PlatformUnavailable, match="choose another webhook_host or webhook_port"):
            await serve(bot, account, "s3cret", ErrorTranslator(emulator.token, 5.0), handle)
