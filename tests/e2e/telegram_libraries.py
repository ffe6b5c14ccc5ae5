"""Adapters for the two bot libraries, unmodified, covering only the calls that they spell differently.

Bot methods have the same names and parameters in both: tests call `bot.send_message(chat_id=..., text=...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiogram
import telegram
import telegram.error
import telegram.ext
import telegram.request
from aiogram import exceptions
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.types import BotCommand, BufferedInputFile, ReplyParameters
from aiogram.types import InlineKeyboardButton as AiogramButton
from aiogram.types import InlineKeyboardMarkup as AiogramMarkup
from aiogram.webhook.aiohttp_server import SimpleRequestHandler
from aiohttp import web

Heard = Callable[[Any, Any], Awaitable[None]]
"""A bot, and the update that came in."""


class Library(Protocol):
    busy: type[Exception]
    bad: type[Exception]
    forbidden: type[Exception]
    conflict: type[Exception]
    unauthorized: type[Exception]
    broken: type[Exception]
    """Nothing was heard."""
    server: type[Exception]
    """500 and above."""

    def bot(self, base_url: str, token: str) -> contextlib.AbstractAsyncContextManager[Any]: ...

    def polling(self, base_url: str, token: str, heard: Heard) -> contextlib.AbstractAsyncContextManager[Any]: ...

    def webhook(
        self, base_url: str, token: str, heard: Heard, secret: str
    ) -> contextlib.AbstractAsyncContextManager[Any]: ...

    def file(self, content: bytes, name: str) -> Any: ...

    def buttons(self, *rows: list[tuple[str, str]]) -> Any: ...

    def command(self, name: str, description: str) -> Any: ...

    def reply(self, message_id: int) -> Any: ...

    async def download(self, bot: Any, file_id: str) -> bytes: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class PythonTelegramBot(Library):
    busy = telegram.error.RetryAfter
    bad = telegram.error.BadRequest
    forbidden = telegram.error.Forbidden
    conflict = telegram.error.Conflict
    unauthorized = telegram.error.InvalidToken
    broken = telegram.error.NetworkError
    server = telegram.error.NetworkError

    @asynccontextmanager
    async def bot(self, base_url: str, token: str) -> AsyncIterator[telegram.Bot]:
        bot = telegram.Bot(token, base_url=f"{base_url}/bot", base_file_url=f"{base_url}/file/bot")
        # Without `initialize`, which calls `getMe`: some tests are about calls that fail.
        for request in bot._request:  # noqa: SLF001  # the library has no other way to open its connections
            await request.initialize()
        try:
            yield bot
        finally:
            for request in bot._request:  # noqa: SLF001
                await request.shutdown()

    def _application(self, base_url: str, token: str, heard: Heard) -> Any:
        builder = telegram.ext.ApplicationBuilder().token(token)
        app = builder.base_url(f"{base_url}/bot").base_file_url(f"{base_url}/file/bot").build()

        async def handle(update: object, context: Any) -> None:
            await heard(context.bot, update)

        app.add_handler(telegram.ext.TypeHandler(telegram.Update, handle))
        return app

    @asynccontextmanager
    async def polling(self, base_url: str, token: str, heard: Heard) -> AsyncIterator[Any]:
        app = self._application(base_url, token, heard)
        async with app:
            await app.start()
            await app.updater.start_polling(poll_interval=0, timeout=5, allowed_updates=telegram.Update.ALL_TYPES)
            try:
                yield app.bot
            finally:
                await app.updater.stop()
                await app.stop()

    @asynccontextmanager
    async def webhook(self, base_url: str, token: str, heard: Heard, secret: str) -> AsyncIterator[Any]:
        app = self._application(base_url, token, heard)
        port = free_port()
        async with app:
            await app.start()
            await app.updater.start_webhook(
                "127.0.0.1", port, "hook", webhook_url=f"http://127.0.0.1:{port}/hook", secret_token=secret
            )
            try:
                yield app.bot
            finally:
                await app.updater.stop()
                await app.stop()

    def file(self, content: bytes, name: str) -> Any:
        return telegram.InputFile(io.BytesIO(content), filename=name)

    def buttons(self, *rows: list[tuple[str, str]]) -> Any:
        keyboard = [
            [telegram.InlineKeyboardButton(text, callback_data=carries) for text, carries in row] for row in rows
        ]
        return telegram.InlineKeyboardMarkup(keyboard)

    def command(self, name: str, description: str) -> Any:
        return telegram.BotCommand(name, description)

    def reply(self, message_id: int) -> Any:
        return telegram.ReplyParameters(message_id)

    async def download(self, bot: Any, file_id: str) -> bytes:
        return bytes(await (await bot.get_file(file_id)).download_as_bytearray())


class Aiogram(Library):
    busy = exceptions.TelegramRetryAfter
    bad = exceptions.TelegramBadRequest
    forbidden = exceptions.TelegramForbiddenError
    conflict = exceptions.TelegramConflictError
    unauthorized = exceptions.TelegramUnauthorizedError
    broken = exceptions.TelegramNetworkError
    server = exceptions.TelegramServerError

    @asynccontextmanager
    async def bot(self, base_url: str, token: str) -> AsyncIterator[aiogram.Bot]:
        session = AiohttpSession(api=TelegramAPIServer.from_base(base_url))
        try:
            yield aiogram.Bot(token, session=session)
        finally:
            await session.close()

    def _dispatcher(self, heard: Heard) -> aiogram.Dispatcher:
        dispatcher = aiogram.Dispatcher()

        async def handle(_: Any, event: Any, data: dict[str, Any]) -> None:
            await heard(data["bot"], event)

        dispatcher.update.outer_middleware.register(handle)
        # The bot requests only the update types that have handlers.
        for observer in (dispatcher.message, dispatcher.edited_message, dispatcher.callback_query):
            observer.register(handle)
        return dispatcher

    @asynccontextmanager
    async def polling(self, base_url: str, token: str, heard: Heard) -> AsyncIterator[Any]:
        dispatcher = self._dispatcher(heard)
        async with self.bot(base_url, token) as bot:
            polling = asyncio.create_task(dispatcher.start_polling(bot, handle_signals=False, polling_timeout=5))
            try:
                yield bot
            finally:
                await dispatcher.stop_polling()
                await polling

    @asynccontextmanager
    async def webhook(self, base_url: str, token: str, heard: Heard, secret: str) -> AsyncIterator[Any]:
        dispatcher = self._dispatcher(heard)
        async with self.bot(base_url, token) as bot:
            app = web.Application()
            SimpleRequestHandler(dispatcher, bot, secret_token=secret).register(app, "/hook")
            runner = web.AppRunner(app)
            await runner.setup()
            port = free_port()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await bot.set_webhook(f"http://127.0.0.1:{port}/hook", secret_token=secret)
            try:
                yield bot
            finally:
                await runner.cleanup()

    def file(self, content: bytes, name: str) -> Any:
        return BufferedInputFile(content, name)

    def buttons(self, *rows: list[tuple[str, str]]) -> Any:
        keyboard = [[AiogramButton(text=text, callback_data=carries) for text, carries in row] for row in rows]
        return AiogramMarkup(inline_keyboard=keyboard)

    def command(self, name: str, description: str) -> Any:
        return BotCommand(command=name, description=description)

    def reply(self, message_id: int) -> Any:
        return ReplyParameters(message_id=message_id)

    async def download(self, bot: Any, file_id: str) -> bytes:
        file = await bot.get_file(file_id)
        content = await bot.download_file(file.file_path)
        assert content is not None
        return content.read()


LIBRARIES: tuple[Library, ...] = (PythonTelegramBot(), Aiogram())
