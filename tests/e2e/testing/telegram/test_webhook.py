"""Delivery of updates by webhook."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Aiogram, Library, free_port

both = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def echo(bot: Any, update: Any) -> None:
    if update.message is not None and update.message.text:
        await bot.send_message(update.message.chat.id, f"You said: {update.message.text}")


@both
async def test_each_update_is_posted_to_the_webhook_with_its_secret(library: Library) -> None:
    async with scene(library) as s:
        async with library.webhook(s.emulator.base_url, s.emulator.token, echo, "s3cret") as bot:
            await s.people.say(ANN, "hello")
            await s.people.until(
                lambda: sorted(s.people.texts(ANN)) == ["You said: /start", "You said: hello"], "both answers"
            )
            info = await bot.get_webhook_info()
            assert (info.url.endswith("/hook"), info.pending_update_count) == (True, 0)
            await refused(s.bot.get_updates(), library.conflict, "while webhook is active")
            assert await s.bot.delete_webhook()
        await s.people.say(ANN, "by polling now")
        assert [one.message.text for one in await s.bot.get_updates()] == ["by polling now"]


@both
async def test_a_webhook_that_fails_is_retried_in_order(library: Library) -> None:
    heard: list[tuple[str, str]] = []
    failures, enough = 2, asyncio.Event()

    async def hook(request: web.Request) -> web.Response:
        nonlocal failures
        update = await request.json()
        heard.append((request.headers["X-Telegram-Bot-Api-Secret-Token"], update["message"]["text"]))
        failures -= 1
        if len(heard) == 4:
            enough.set()
        return web.Response(status=500 if failures >= 0 else 200)

    async with scene(library) as s:
        await s.people.say(ANN, "second")
        app, port = web.Application(), free_port()
        app.router.add_post("/", hook)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await s.bot.set_webhook(f"http://127.0.0.1:{port}/", secret_token="abc")
        async with asyncio.timeout(10):
            await enough.wait()
        assert heard == [("abc", "/start")] * 3 + [("abc", "second")]
        info = await s.bot.get_webhook_info()
        assert "500" in info.last_error_message
        await runner.cleanup()


@both
async def test_a_cut_keeps_updates_from_a_webhook_until_it_is_over(library: Library) -> None:
    async with scene(library) as s, library.webhook(s.emulator.base_url, s.emulator.token, echo, "s3cret"):
        await s.people.until(lambda: len(s.people.texts(ANN)) == 1, "an answer before the cut")
        cut_at = asyncio.get_running_loop().time()
        await s.people.cut(1.0)
        await s.people.say(ANN, "still there?")
        await s.people.until(lambda: "You said: still there?" in s.people.texts(ANN), "an answer after the cut")
        assert asyncio.get_running_loop().time() - cut_at >= 1.0


@both
async def test_pending_updates_are_dropped_only_on_request(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.delete_webhook()
        assert (await s.bot.get_webhook_info()).pending_update_count == 1
        assert await s.bot.delete_webhook(drop_pending_updates=True)
        assert (await s.bot.get_webhook_info()).pending_update_count == 0
        call = s.bot.set_webhook("http://example.org/hook")
        await refused(call, library.bad, "An HTTPS URL must be provided")
        call = s.bot.set_webhook("https://example.org/hook", secret_token="not good")
        await refused(call, library.bad, "secret token contains unallowed characters")


async def test_a_method_in_the_webhook_response_is_called() -> None:
    async def hook(request: web.Request) -> web.Response:
        chat = (await request.json())["message"]["chat"]["id"]
        return web.json_response({"method": "sendMessage", "chat_id": chat, "text": "in the reply"})

    async with scene(Aiogram()) as s:
        app, port = web.Application(), free_port()
        app.router.add_post("/", hook)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await s.bot.set_webhook(f"http://127.0.0.1:{port}/")
        await s.people.until(lambda: s.people.texts(ANN) == ["in the reply"], "what the reply asked for")
        await runner.cleanup()
