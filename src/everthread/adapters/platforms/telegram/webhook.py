"""Being brought what comes in: a small listener of its own, behind whatever speaks HTTPS to the outside.

It knows Telegram by a secret that is made anew at each start. What is not taken is answered with an error, and comes
again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from urllib.parse import urlsplit

import telegram
from aiohttp import web
from telegram.error import TelegramError

from everthread.adapters.platforms.telegram.errors import Failures
from everthread.adapters.platforms.telegram.http import Transport
from everthread.adapters.platforms.telegram.polling import Taker
from everthread.adapters.platforms.telegram.updates import WANTED, read
from everthread.config.settings import PlatformAccount
from everthread.domain.errors import EverthreadError, PlatformUnavailable

log = logging.getLogger("everthread.gateway")

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
BODY_BYTES_MAX = 1_000_000
ONE_AT_A_TIME = 1
"""Several at once would come in any order."""


async def serve(bot: telegram.Bot, account: PlatformAccount, secret: str, failures: Failures, take: Taker) -> None:
    """Take in what is brought, until cancelled. Raises `PlatformUnavailable` if nothing can be brought here, and what
    `take` raises that is no error of ours.
    """
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def brought(request: web.Request) -> web.Response:
        shown = request.headers.get(SECRET_HEADER, "")
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), secret.encode()):
            return web.Response(status=403)
        try:
            return web.Response(status=await _take_in(await request.read(), bot, take))
        except Exception as error:
            if over.done():
                raise
            over.set_exception(error)
            return web.Response(status=503)

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post(urlsplit(account.webhook_url).path or "/", brought)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, account.webhook_host, account.webhook_port).start()
        except OSError as error:
            place = f"{account.webhook_host}:{account.webhook_port}"
            raise PlatformUnavailable(
                f"nothing can be brought to {place}: {error.strerror}; choose another webhook_host or webhook_port"
            ) from None
        with failures.told():
            await bot.set_webhook(
                account.webhook_url,
                max_connections=ONE_AT_A_TIME,
                allowed_updates=WANTED,
                drop_pending_updates=False,
                secret_token=secret,
            )
        await over
    finally:
        await runner.cleanup()


async def _take_in(body: bytes, bot: telegram.Bot, take: Taker) -> int:
    """What it is answered."""
    try:
        raw = Transport.parse_json_payload(body)
    except TelegramError as error:
        # It would be no better the next time, and others wait behind it.
        log.warning("an update was dropped: %s", error)
        return 200
    if not isinstance(raw.get("update_id"), int):
        log.warning("an update was dropped: it has no number")
        return 200
    try:
        await take(read(raw, bot))
    except EverthreadError as error:
        log.warning("an update comes again later: %s", error)
        return 503
    return 200
