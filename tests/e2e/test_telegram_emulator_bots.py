"""Whole bots on the emulator, as their libraries run them: polling, webhooks, and what a person sees at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Aiogram, Library, free_port

from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.protocol import Fault
from everthread.testing.telegram.users import TelegramUsers

both = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def echo(bot: Any, update: Any) -> None:
    if update.message is not None and update.message.text:
        await bot.send_message(update.message.chat.id, f"You said: {update.message.text}")


@both
async def test_a_bot_that_polls_answers_everybody_also_what_waited_for_it(library: Library) -> None:
    async with scene(library) as s:
        async with library.polling(s.emulator.base_url, s.emulator.token, echo):
            await s.people.until(lambda: s.people.texts(ANN) == ["You said: /start"], "an answer to what waited")
            for user in (8, 9):
                await s.people.say(user, f"I am {user}")
            await s.people.until(lambda: s.people.texts(9) == ["You said: I am 9"], "an answer")
            await s.people.until(lambda: s.people.texts(8) == ["You said: I am 8"], "an answer")
        assert (await s.people.dump()).pending == ()


@both
async def test_a_bot_that_polls_lives_through_a_cut(library: Library) -> None:
    async with scene(library) as s, library.polling(s.emulator.base_url, s.emulator.token, echo):
        await s.people.until(lambda: len(s.people.texts(ANN)) == 1, "an answer before the cut")
        await s.people.cut(0.5)
        await s.people.say(ANN, "still there?")
        await s.people.until(lambda: "You said: still there?" in s.people.texts(ANN), "an answer after the cut")


@both
async def test_a_webhook_is_brought_each_update_with_its_secret(library: Library) -> None:
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
async def test_a_webhook_that_fails_is_tried_again_in_order(library: Library) -> None:
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
async def test_pending_updates_are_dropped_only_when_that_is_asked_for(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.delete_webhook()
        assert (await s.bot.get_webhook_info()).pending_update_count == 1
        assert await s.bot.delete_webhook(drop_pending_updates=True)
        assert (await s.bot.get_webhook_info()).pending_update_count == 0
        call = s.bot.set_webhook("http://example.org/hook")
        await refused(call, library.bad, "An HTTPS URL must be provided")
        call = s.bot.set_webhook("https://example.org/hook", secret_token="not good")
        await refused(call, library.bad, "secret token contains unallowed characters")


async def test_a_method_in_the_reply_to_a_webhook_is_done() -> None:
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


@both
async def test_a_conversation_is_drawn_as_a_person_sees_it(library: Library) -> None:
    async def butler(bot: Any, update: Any) -> None:
        if update.callback_query is not None:
            query = update.callback_query
            await bot.answer_callback_query(query.id, text="Done.")
            await bot.edit_message_text(
                text="*Done*\\.", chat_id=ANN, message_id=query.message.message_id, parse_mode="MarkdownV2"
            )
        elif update.message.text == "/start":
            await bot.send_message(ANN, "Good day\\. _At your service_\\.", parse_mode="MarkdownV2")
        else:
            await bot.send_message(
                ANN,
                "Shall I write this down?\n```python\nprint('你好')\n```\n>as you said it\n>just now",
                parse_mode="MarkdownV2",
                reply_parameters=library.reply(update.message.message_id),
                reply_markup=library.buttons([("Yes", "yes"), ("No", "no")]),
            )

    async with scene(library) as s, library.polling(s.emulator.base_url, s.emulator.token, butler):
        await s.people.until(lambda: len(s.people.texts(ANN)) == 1, "a greeting")
        await s.people.say(
            ANN, "Remember the milk, please, and everything else that one needs for a breakfast of kings."
        )
        await s.people.until(lambda: len(s.people.texts(ANN)) == 2, "a question")
        asked = await s.people.screen(ANN)
        await s.people.press(ANN, ANN, s.people.sent(ANN)[1].message_id, "Yes")
        await s.people.until(lambda: s.people.texts(ANN)[1] == "Done.", "an end")
        snapshots = Path(__file__).parents[1] / "screens" / "telegram"
        assert asked == (snapshots / "question.txt").read_text()
        assert await s.people.screen(ANN) == (snapshots / "answered.txt").read_text()


async def test_as_a_process_it_prints_its_address_and_serves_until_it_is_stopped() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everthread.testing.telegram", "--port", "0", "--token", "77:ABC", "--no-limits"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        address = json.loads(await process.stdout.readline())
        assert address == {
            "base_url": f"http://127.0.0.1:{address['port']}",
            "port": address["port"],
            "token": "77:ABC",
        }
        async with TelegramUsers(address["base_url"]) as people, aiohttp.ClientSession() as http:
            await people.say(ANN, "hello")
            bot_url = f"{address['base_url']}/bot77:ABC"
            for number in range(40):
                async with http.get(f"{bot_url}/sendMessage", params={"chat_id": ANN, "text": f"{number}"}) as response:
                    assert response.status == 200
            await people.until(lambda: len(people.texts(ANN)) == 40, "all of them, with no limits")
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("how", ["json", "form", "query", "multipart"])
async def test_parameters_come_in_any_of_the_ways_that_the_real_one_takes(how: str) -> None:
    async with scene(Aiogram()) as s, aiohttp.ClientSession() as http:
        url = f"{s.emulator.base_url}/bot{s.emulator.token}/sendmessage"
        keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
        fields = {"chat_id": str(ANN), "text": "as it may", "reply_markup": json.dumps(keyboard)}
        sent: dict[str, Any] = {"data": fields}
        if how == "json":
            sent = {"json": {"chat_id": ANN, "text": "as it may", "reply_markup": keyboard}}
        elif how == "query":
            sent = {"params": fields}
        elif how == "multipart":
            form = aiohttp.FormData(default_to_multipart=True)
            for name, value in fields.items():
                form.add_field(name, value)
            sent = {"data": form}
        async with http.post(url, **sent) as response:
            body = await response.json()
        assert (body["ok"], body["result"]["text"]) == (True, "as it may")
        assert body["result"]["reply_markup"] == keyboard
        [_, shown] = await s.people.messages(ANN)
        assert shown.buttons == ((("Yes", "y"),),)


async def test_errors_have_the_shape_of_the_real_one() -> None:
    async with scene(Aiogram()) as s, aiohttp.ClientSession() as http:

        async def called(path: str) -> tuple[int, dict[str, Any]]:
            async with http.get(f"{s.emulator.base_url}/{path}") as response:
                return response.status, await response.json()

        assert await called("bot42:WRONG/getMe") == (
            401,
            {"ok": False, "error_code": 401, "description": "Unauthorized"},
        )
        not_found = {"ok": False, "error_code": 404, "description": "Not Found"}
        assert await called("bot42:TEST/noSuchMethod") == (404, not_found)
        assert await called("nonsense") == (404, not_found)
        assert await called("file/bot42:TEST/no/such") == (404, not_found)
        await s.people.fault(Fault("busy", seconds=35))
        description = "Too Many Requests: retry after 35"
        parameters = {"retry_after": 35}
        assert await called("bot42:TEST/getMe") == (
            429,
            {"ok": False, "error_code": 429, "description": description, "parameters": parameters},
        )


async def test_tests_that_want_the_impossible_are_told_so() -> None:
    async with scene(Aiogram()) as s:
        with pytest.raises(AssertionError, match="no button 'Yes'"):
            await s.people.press(ANN, ANN, 1, "Yes")
        with pytest.raises(AssertionError, match="chat not found"):
            await s.people.say(ANN, "x", chat=-5)
        with pytest.raises(AssertionError, match="negative id"):
            await s.people.group(wire.Group(5, "Garden"))
        with pytest.raises(AssertionError, match="no update 1"):
            await s.people.redeliver(1)
        with pytest.raises(AssertionError, match="it never came to pass: an answer"):
            await s.people.until(lambda: False, "an answer", patience_s=0.1)
