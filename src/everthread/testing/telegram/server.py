"""HTTP server: the Bot API below `/bot<token>/`, files below `/file/bot<token>/`, control calls below `/control/`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self
from urllib.parse import unquote

import msgspec

from everthread.testing.model_server.http import HttpRequest, HttpServer, read_request, respond
from everthread.testing.telegram.bot_methods import BotMethods
from everthread.testing.telegram.control import Control
from everthread.testing.telegram.errors import ApiError
from everthread.testing.telegram.faults import Faults, fault_response
from everthread.testing.telegram.message_methods import MessageMethods
from everthread.testing.telegram.objects import Update, User
from everthread.testing.telegram.params import Params, read_params
from everthread.testing.telegram.protocol import Fault
from everthread.testing.telegram.rate_limits import Limits
from everthread.testing.telegram.state import TelegramState
from everthread.testing.telegram.updates import UpdateBatch
from everthread.testing.telegram.webhook import DescribedResult, Webhook

TOKEN = "42:TEST"

_PAGE = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>502 Bad Gateway</body>\r\n</html>\r\n"


class TelegramEmulator(HttpServer):
    """Telegram with one bot. `limits` applies approximately the real rate limits. With `privacy`, the bot receives only
    the group messages addressed to it.
    """

    def __init__(
        self, token: str = TOKEN, *, username: str = "test_bot", limits: bool = True, privacy: bool = False
    ) -> None:
        super().__init__()
        number = token.partition(":")[0]
        if not number.isdigit() or ":" not in token:
            raise ValueError(f"a token is a number, a colon and a secret, as in {TOKEN}: not {token!r}")
        self.token = token
        bot = User(int(number), True, "Test Bot", username, None, True, not privacy, False)
        self.state = TelegramState(bot)
        self.limits = Limits(limits)
        self.faults = Faults()
        self.webhook = Webhook(self.state, self.faults)
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        bot_methods = BotMethods(self.state, self.webhook)
        messages = MessageMethods(self.state, self.limits)
        self._methods: dict[str, Callable[[Params], object]] = {
            **bot_methods.methods,
            **messages.methods,
            **self.webhook.methods,
        }
        self._control = Control(self.state, self.limits, self.faults, self.webhook, self.cut, self.calls, self.refused)
        self._writers: set[asyncio.StreamWriter] = set()
        """Connections of the bot, closed by `cut`."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def announcement(self) -> str:
        address = {"base_url": self.base_url, "port": self.port, "token": self.token}
        return msgspec.json.encode(address).decode()

    async def start(self, port: int = 0) -> Self:
        await super().start(port)
        self._webhook_task = asyncio.create_task(
            self.webhook.run(self._call_from_webhook, self._outgoing), name="webhook"
        )
        return self

    async def stop(self) -> None:
        self._webhook_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._webhook_task
        await super().stop()

    def cut(self, seconds: float) -> None:
        """Block the bot's traffic for some seconds and close its open connections."""
        self.faults.cut(seconds)
        for writer in self._writers:
            writer.transport.abort()

    # --- Requests ----------------------------------------------------------------------------------------------------

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, received = await read_request(reader)
        path, _, query = received.path.partition("?")
        path = unquote(path)
        if path.startswith("/control/"):
            return await self._control.serve(path.removeprefix("/control/"), received, writer)
        if self.faults.is_cut:
            writer.transport.abort()
            return False
        self._writers.add(writer)
        try:
            if path.startswith("/file/bot"):
                return await self._serve_file(path.removeprefix("/file/bot"), writer)
            return await self._serve_call(path, query, received, reader, writer)
        finally:
            self._writers.discard(writer)

    async def _serve_file(self, path: str, writer: asyncio.StreamWriter) -> bool:
        token, _, file_path = path.partition("/")
        content = self.state.files.read_path(file_path) if token == self.token else None
        if content is None:
            return await self._send_error(writer, ApiError(404, "Not Found"))
        return await respond(writer, 200, content, {"Content-Type": "application/octet-stream"})

    async def _serve_call(
        self, path: str, query: str, received: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        try:
            call = self._method_name(path)
            params = read_params(query, received.headers.get("content-type", ""), received.body)
            fault = self.faults.next(call, params.integer("chat_id") or None)
            if fault is not None and (early := await self._apply_fault(fault, writer)) is not None:
                return early
            result = await self._call(call, params)
            if fault is not None and fault.kind == "drop_after":
                return False
            if fault is not None and fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            if isinstance(result, UpdateBatch):
                # A client that disconnected while waiting must not consume updates.
                if reader.at_eof():
                    return False
                result = self._outgoing(result)
        except ApiError as refusal:
            return await self._send_error(writer, refusal)
        body: dict[str, object] = {"ok": True, "result": result}
        if isinstance(result, DescribedResult):
            body = {"ok": True, "result": result.result, "description": result.description}
        return await respond(writer, 200, msgspec.json.encode(body))

    def _method_name(self, path: str) -> str:
        token, _, call = path.removeprefix("/bot").partition("/")
        if not path.startswith("/bot") or ":" not in token:
            raise ApiError(404, "Not Found")
        if token != self.token:
            raise ApiError(401, "Unauthorized")
        self.calls[call] += 1
        return call.lower()

    async def _apply_fault(self, fault: Fault, writer: asyncio.StreamWriter) -> bool | None:
        """Apply a fault instead of the call. Return None if the call is still to be carried out."""
        if refusal := fault_response(fault):
            raise refusal
        if fault.kind == "gibberish":
            return await respond(writer, 502, _PAGE, {"Content-Type": "text/html"})
        return False if fault.kind == "drop_before" else None

    async def _call(self, call: str, params: Params) -> object:
        act = self._methods.get(call)
        if act is None:
            raise ApiError(404, "Not Found")
        result = act(params)
        return await result if inspect.isawaitable(result) else result

    def _outgoing(self, batch: Sequence[Update]) -> list[Update]:
        self.state.updates.mark_sent(batch)
        return self.faults.reorder(batch)

    async def _call_from_webhook(self, call: str, params: Params) -> None:
        """Call a method that the bot named in its webhook response. The bot does not receive the result."""
        self.calls[call] += 1
        try:
            await self._call(call.lower(), params)
        except ApiError as refusal:
            self.refused[str(refusal.code)] += 1

    async def _send_error(self, writer: asyncio.StreamWriter, refusal: ApiError) -> bool:
        self.refused[str(refusal.code)] += 1
        headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after is not None else {}
        return await respond(writer, refusal.code, msgspec.json.encode(refusal.body()), headers)
