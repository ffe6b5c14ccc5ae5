"""Compare clients of Telegram's Bot API: `python -m benchmarks.telegram_libraries [--json]`.

Each candidate runs in its own process against the same minimal server: it polls for updates, reads the fields that an
adapter needs, and sends half as many messages. A library that is not installed is skipped. Also needs aiohttp and
msgspec, which everthread installs: `python -m venv V && V/bin/pip install aiogram python-telegram-bot msgspec`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

CANDIDATES = {
    "aiogram": "aiogram",
    "python-telegram-bot": "telegram",
    "python-telegram-bot over aiohttp": "telegram",
    "own": "msgspec",
}
TOKEN = "42:" + "A" * 35
UPDATES, BATCH, ROUNDS = 1000, 100, 3


def make_update(number: int) -> dict[str, Any]:
    """Make an update of a busy group: a reply to another message, with an entity."""
    chat = {"id": -1001234567890, "title": "A group", "type": "supergroup", "is_forum": True}
    person = {"id": 4242, "is_bot": False, "first_name": "Anna", "username": "anna", "language_code": "en"}
    before = {"message_id": number, "from": person, "chat": chat, "date": 1790000000, "text": "an earlier message"}
    text = f"@everthread_bot what is the weather like in the mountains, number {number}?"
    message = {
        **before,
        "message_id": number + 1,
        "text": text,
        "entities": [{"offset": 0, "length": 15, "type": "mention"}],
        "reply_to_message": before,
        "message_thread_id": 7,
        "is_topic_message": True,
    }
    return {"update_id": number, "message": message}


async def serve() -> None:
    """Answer getUpdates with a batch of updates and every other method with a message."""
    sent = {
        "message_id": 1,
        "date": 1790000000,
        "chat": {"id": 1, "type": "private", "first_name": "A"},
        "text": "x",
        "from": {"id": 42, "is_bot": True, "first_name": "bot"},
    }
    batches = [json.dumps([make_update(n + i) for i in range(BATCH)]).encode() for n in range(0, UPDATES, BATCH)]
    polls = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal polls
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            length = [
                int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")
            ]
            if length:
                await reader.readexactly(length[0])
            elif "chunked" in head.lower():
                while await reader.readuntil(b"\r\n") != b"0\r\n":
                    pass
                await reader.readuntil(b"\r\n")
            if "getUpdates" in head.split("\r\n", 1)[0]:
                result = batches[polls % len(batches)]
                polls += 1
            elif "getMe" in head.split("\r\n", 1)[0]:
                result = b'{"id":42,"is_bot":true,"first_name":"bot","username":"everthread_bot"}'
            else:
                result = json.dumps(sent).encode()
            body = b'{"ok":true,"result":' + result + b"}"
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- Candidates ------------------------------------------------------------------------------------------------------


class AiogramClient:
    def __init__(self, base_url: str) -> None:
        from aiogram import Bot
        from aiogram.client.session.aiohttp import AiohttpSession
        from aiogram.client.telegram import TelegramAPIServer

        self._bot = Bot(TOKEN, session=AiohttpSession(api=TelegramAPIServer.from_base(base_url)))

    async def poll(self, offset: int) -> list[tuple[Any, ...]]:
        return [self._read(one) for one in await self._bot.get_updates(offset=offset, timeout=10)]

    def _read(self, update: Any) -> tuple[Any, ...]:
        message = update.message
        return update.update_id, message.chat.id, message.from_user.id, message.text, message.reply_to_message.text

    async def send(self, text: str) -> int:
        return (await self._bot.send_message(1, text, parse_mode="MarkdownV2")).message_id

    async def aclose(self) -> None:
        await self._bot.session.close()


class PythonTelegramBotClient:
    def __init__(self, base_url: str) -> None:
        from telegram import Bot

        self._bot = Bot(TOKEN, base_url=f"{base_url}/bot")

    async def poll(self, offset: int) -> list[tuple[Any, ...]]:
        return [self._read(one) for one in await self._bot.get_updates(offset=offset, timeout=10)]

    def _read(self, update: Any) -> tuple[Any, ...]:
        message = update.message
        return update.update_id, message.chat.id, message.from_user.id, message.text, message.reply_to_message.text

    async def send(self, text: str) -> int:
        return (await self._bot.send_message(1, text, parse_mode="MarkdownV2")).message_id

    async def aclose(self) -> None:
        await self._bot.shutdown()


class PythonTelegramBotOverAiohttp(PythonTelegramBotClient):
    """python-telegram-bot with a transport over aiohttp instead of httpx."""

    def __init__(self, base_url: str) -> None:
        import aiohttp
        import msgspec
        from telegram import Bot
        from telegram.request import BaseRequest

        class Transport(BaseRequest):
            """Send every request over one session."""

            http: aiohttp.ClientSession | None = None

            @property
            def read_timeout(self) -> float:
                return 10.0

            async def initialize(self) -> None:
                pass

            async def shutdown(self) -> None:
                if self.http is not None:
                    await self.http.close()

            @staticmethod
            def parse_json_payload(payload: bytes) -> Any:
                return msgspec.json.decode(payload)

            async def do_request(self, url: str, method: str, request_data: Any = None, *_: Any, **__: Any) -> Any:
                if self.http is None:
                    self.http = aiohttp.ClientSession()
                body = msgspec.json.encode(request_data.parameters) if request_data is not None else None
                headers = {"Content-Type": "application/json"}
                async with self.http.request(method, url, data=body, headers=headers) as response:
                    return response.status, await response.read()

        self._transport = Transport()
        self._bot = Bot(TOKEN, base_url=f"{base_url}/bot", request=self._transport, get_updates_request=self._transport)

    async def aclose(self) -> None:
        await self._transport.shutdown()


class OwnClient:
    """A client with aiohttp and msgspec alone that decodes only the fields an adapter reads."""

    def __init__(self, base_url: str) -> None:
        import aiohttp
        import msgspec

        person = msgspec.defstruct("Person", [("id", int), ("first_name", str, "")])
        chat = msgspec.defstruct("Chat", [("id", int), ("type", str)])
        before = msgspec.defstruct("Before", [("message_id", int), ("text", str, "")])
        fields: list[Any] = [
            ("message_id", int),
            ("chat", chat),
            ("from_", person),
            ("text", str),
            ("reply_to_message", before),
        ]
        message = msgspec.defstruct("Message", fields, rename={"from_": "from"})
        update = msgspec.defstruct("Update", [("update_id", int), ("message", message)])
        self._updates: Any = msgspec.json.Decoder(
            msgspec.defstruct("Updates", [("ok", bool), ("result", list[update])])
        )
        self._sent: Any = msgspec.json.Decoder(msgspec.defstruct("Sent", [("ok", bool), ("result", before)]))
        self._encode, self._url = msgspec.json.encode, f"{base_url}/bot{TOKEN}"
        self._http = aiohttp.ClientSession()

    async def poll(self, offset: int) -> list[tuple[Any, ...]]:
        updates = self._updates.decode(await self._call("getUpdates", {"offset": offset, "timeout": 10})).result
        return [
            (
                one.update_id,
                one.message.chat.id,
                one.message.from_.id,
                one.message.text,
                one.message.reply_to_message.text,
            )
            for one in updates
        ]

    async def send(self, text: str) -> int:
        arguments = {"chat_id": 1, "text": text, "parse_mode": "MarkdownV2"}
        return self._sent.decode(await self._call("sendMessage", arguments)).result.message_id

    async def _call(self, name: str, arguments: dict[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json"}
        async with self._http.post(f"{self._url}/{name}", data=self._encode(arguments), headers=headers) as response:
            return await response.read()

    async def aclose(self) -> None:
        await self._http.close()


CLIENTS = {
    "aiogram": AiogramClient,
    "python-telegram-bot": PythonTelegramBotClient,
    "python-telegram-bot over aiohttp": PythonTelegramBotOverAiohttp,
    "own": OwnClient,
}


async def measure(candidate: str, base_url: str) -> dict[str, float]:
    """Measure CPU time and memory of this process, without aiohttp, which a gateway imports anyway."""
    import aiohttp  # noqa: F401

    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    import_ms = time.process_time()
    client = CLIENTS[candidate](base_url)
    import_ms = (time.process_time() - import_ms) * 1000
    import_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    polls, sends = list[float](), list[float]()
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        for offset in range(0, UPDATES, BATCH):
            assert len(await client.poll(offset)) == BATCH
        polled = time.process_time()
        for number in range(UPDATES // 2):
            assert await client.send(f"an answer, number {number}, of some length and with *words* in it") == 1
        polls.append((polled - start) * 1000 / UPDATES)
        sends.append((time.process_time() - polled) * 1000 / (UPDATES // 2))
    await client.aclose()
    return {
        "import_cpu_ms": import_ms,
        "import_mb": import_mb,
        "cpu_ms_per_update": statistics.median(polls[1:]),
        "cpu_ms_per_send": statistics.median(sends[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    if options.measure:
        print(json.dumps(asyncio.run(measure(*options.measure))))
        return
    module = [sys.executable, "-m", "benchmarks.telegram_libraries"]
    figures: dict[str, dict[str, float]] = {}
    for candidate in [name for name, package in CANDIDATES.items() if find_spec(package)]:
        server = subprocess.Popen([*module, "--serve"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            base_url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            runs = [
                json.loads(subprocess.check_output([*module, "--measure", candidate, base_url])) for _ in range(ROUNDS)
            ]
        finally:
            server.kill()
            server.wait()
        figures[candidate] = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}
    if options.json:
        print(json.dumps(figures))
        return
    for candidate, of_it in figures.items():
        print(f"{candidate:34}", *(f"{name} {value:8.3f}" for name, value in of_it.items()))


if __name__ == "__main__":
    main()
