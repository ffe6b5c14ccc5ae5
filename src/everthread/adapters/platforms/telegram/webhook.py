"""Receive updates by a webhook: an HTTP listener behind a proxy that terminates TLS.

Requests are authenticated by a secret that is new at each start. An update that can't be stored is answered with an
error, and Telegram sends it again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from urllib.parse import urlsplit

import telegram
from aiohttp import web
from telegram.error import TelegramError

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import AiohttpRequest
from everthread.adapters.platforms.telegram.polling import UpdateHandler
from everthread.adapters.platforms.telegram.updates import UPDATE_KINDS, parse_update
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import EverthreadError, PlatformUnavailable

log = logging.getLogger("everthread.gateway")

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
BODY_BYTES_MAX = 1_000_000
CONNECTIONS_MAX = 1
"""Several connections would deliver updates in any order."""


async def serve(
    bot: telegram.Bot, account: PlatformAccount, secret: str, errors: ErrorTranslator, handle: UpdateHandler
) -> None:
    """Handle updates until cancelled. Raises `PlatformUnavailable` if it can't listen, and errors of the handler
    that are not an `EverthreadError`.
    """
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def receive(request: web.Request) -> web.Response:
        secret_sent = request.headers.get(SECRET_HEADER, "")
        if not hmac.compare_digest(secret_sent.encode("utf-8", "replace"), secret.encode()):
            return web.Response(status=403)
        try:
            return web.Response(status=await _handle_body(await request.read(), bot, handle))
        except Exception as error:
            if failed.done():
                raise
            failed.set_exception(error)
            return web.Response(status=503)

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post(urlsplit(account.webhook_url).path or "/", receive)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, account.webhook_host, account.webhook_port).start()
        except OSError as error:
            address = f"{account.webhook_host}:{account.webhook_port}"
            raise PlatformUnavailable(
                f"can't listen on {address}: {error.strerror}; choose another webhook_host or webhook_port"
            ) from None
        with errors.translate():
            await bot.set_webhook(
                account.webhook_url,
                max_connections=CONNECTIONS_MAX,
                allowed_updates=UPDATE_KINDS,
                drop_pending_updates=False,
                secret_token=secret,
            )
        await failed
    finally:
        await runner.cleanup()


async def _handle_body(body: bytes, bot: telegram.Bot, handle: UpdateHandler) -> int:
    """Handle an update and return the HTTP status."""
    try:
        raw = AiohttpRequest.parse_json_payload(body)
    except TelegramError as error:
        # Sending it again would not help, and would delay later updates.
        log.warning("an update was dropped: %s", error)
        return 200
    if not isinstance(raw.get("update_id"), int):
        log.warning("an update was dropped: it has no update_id")
        return 200
    try:
        await handle(parse_update(raw, bot))
    except EverthreadError as error:
        log.warning("an update could not be stored, and will be sent again: %s", error)
        return 503
    return 200
