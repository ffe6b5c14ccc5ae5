"""Webhook delivery: one update at a time, in order, retried until the bot accepts it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec

from everthread.testing.telegram.errors import bad_request
from everthread.testing.telegram.faults import Faults
from everthread.testing.telegram.objects import Update, WebhookInfo
from everthread.testing.telegram.params import Params, read_params
from everthread.testing.telegram.state import TelegramState

_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_CALL_S = 60.0

Answered = Callable[[str, Params], Awaitable[object]]
"""Callback for a method that the bot named in its webhook response, with its parameters."""


@dataclass(frozen=True, slots=True)
class DescribedResult:
    """A result with a description."""

    result: bool
    description: str


class Webhook:
    def __init__(self, state: TelegramState, faults: Faults) -> None:
        self.url = ""
        self._state = state
        self._faults = faults
        self._secret = ""
        self._connections = 40
        self._error: tuple[int, str] | None = None
        self.methods: Mapping[str, Callable[[Params], object]] = {
            "setwebhook": self.set,
            "deletewebhook": self.delete,
            "getwebhookinfo": self.info,
        }

    # --- Methods -----------------------------------------------------------------------------------------------------

    def set(self, params: Params) -> DescribedResult:
        url = params.text("url")
        if not url:
            return self.delete(params)
        if urlsplit(url).scheme != "https" and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
        secret = params.text("secret_token")
        if secret and not _SECRET.fullmatch(secret):
            raise bad_request("secret token contains unallowed characters")
        self._drop_pending(params)
        self._state.updates.allow(params.read("allowed_updates", list[str], "allowed_updates"))
        is_same = url == self.url
        self.url, self._secret, self._error = url, secret, None
        self._connections = params.integer("max_connections", 40)
        self._state.changes.notify()
        return DescribedResult(True, "Webhook is already set" if is_same else "Webhook was set")

    def delete(self, params: Params) -> DescribedResult:
        self._drop_pending(params)
        was, self.url = self.url, ""
        self._state.changes.notify()
        return DescribedResult(True, "Webhook was deleted" if was else "Webhook is already deleted")

    def info(self, _: Params) -> WebhookInfo:
        pending, allowed = len(self._state.updates.pending), tuple(sorted(self._state.updates.allowed))
        if not self.url:
            return WebhookInfo("", False, pending, allowed_updates=allowed)
        at, words = self._error or (None, None)
        return WebhookInfo(self.url, False, pending, "127.0.0.1", at, words, self._connections, allowed)

    def _drop_pending(self, params: Params) -> None:
        if params.flag("drop_pending_updates"):
            self._state.updates.clear()

    # --- Delivery ----------------------------------------------------------------------------------------------------

    async def run(self, answered: Answered, outgoing: Callable[[Sequence[Update]], list[Update]]) -> None:
        """Deliver updates until cancelled. `outgoing` orders them."""
        changes, updates = self._state.changes, self._state.updates
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_CALL_S)) as http:
            failures = 0
            while True:
                await changes.wait_for(lambda: self.url and updates.batch(1), 60.0)
                for update in outgoing(updates.batch(100)) if self.url else ():
                    if not await self._deliver(http, update, answered):
                        await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                        failures += 1
                        break
                    failures = 0

    async def _deliver(self, http: aiohttp.ClientSession, update: Update, answered: Answered) -> bool:
        url, headers = self.url, {"Content-Type": "application/json"}
        if self._secret:
            headers["X-Telegram-Bot-Api-Secret-Token"] = self._secret
        try:
            if self._faults.is_cut:
                raise _DeliveryFailed("Connection timed out")
            async with http.post(url, data=msgspec.json.encode(update), headers=headers) as response:
                body = await response.read()
                if not 200 <= response.status < 300:
                    raise _DeliveryFailed(f"Wrong response from the webhook: {response.status} {response.reason}")
                self._state.updates.mark_accepted(update)
                reply = read_params("", response.headers.get("Content-Type", ""), body)
        except (aiohttp.ClientError, TimeoutError, _DeliveryFailed) as error:
            self._error = int(time.time()), str(error) or "Connection timed out"
            return False
        if reply.has("method"):
            await answered(reply.text("method"), reply)
        return True


class _DeliveryFailed(Exception):
    pass
