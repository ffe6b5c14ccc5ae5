"""An endpoint for embeddings on loopback: texts that share words are near each other. It fails on demand."""

import asyncio
import hashlib
import math
import re
import threading
from typing import Any, Self

import msgspec

from everthread.testing.http_server import HttpServer, read_request, respond

SIZE = 384
START_S_MAX = 10.0


def vector(text: str) -> list[float]:
    """The words of a text, each hashed to a place."""
    found = [0.0] * SIZE
    for word in re.findall(r"\w+", text.casefold()):
        place = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
        found[place % SIZE] += 1.0 if place & 1 << 20 else -1.0
    # No vector may be nothing at all.
    found[0] += 0.01
    length = math.sqrt(sum(part * part for part in found))
    return [part / length for part in found]


class WordVectors(HttpServer):
    """Use it as `with WordVectors() as vectors`: it lives in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False
        self.asked = 0
        self._started = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="vectors", daemon=True)
        self._thread.start()
        assert self._started.wait(START_S_MAX), "the vectors did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_S_MAX)

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self.start()
        self._started.set()
        await self._end.wait()
        await self.stop()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, received = await read_request(reader)
        self.asked += 1
        if self.is_broken:
            return await respond(writer, 500, b'{"error":{"message":"broken"}}')
        asked: dict[str, Any] = msgspec.json.decode(received.body)
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        rows = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        answer = {"object": "list", "data": rows, "model": asked.get("model", ""), "usage": usage}
        return await respond(writer, 200, msgspec.json.encode(answer))
