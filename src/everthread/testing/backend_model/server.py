"""Stub endpoint for memory back ends: embeddings and chat of an OpenAI-compatible server, on loopback.

In a test: `async with BackendModel() as model` or `with BackendModel().in_thread() as model`. Configure the back end
with `model.base_url`. As a process: `python -m everthread.testing.backend_model.server --port 0` prints its port as one
line.

Embeddings are hashed bags of words (see `embed`). Chat replies come from `extraction`, unless a script is given.
`fail_next`, `refuse`, `delay` and `hang` inject faults; `heal` ends them. A process takes the same orders by POST to
`/faults`: `{"fail_next": 3, "status": 500}`, `{"refuse": "a word"}`, `{"delay_s": 1}`, `{"hang": true}` or `{}`, which
heals.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import msgspec

from everthread.testing.backend_model.embedding import DIMENSIONS, embed, encode_base64
from everthread.testing.backend_model.extraction import reply_to
from everthread.testing.model_server.http import HttpServer, head_of, process_parser, read_request, respond
from everthread.testing.model_server.replies import Protocol, Say, chat_completion, frames

_LOOK_S = 0.02


class ChatRequest(msgspec.Struct):
    """Fields of a chat request that the stub uses. Unknown fields are ignored, since clients differ."""

    model: str = "stub"
    messages: list[dict[str, Any]] = []
    stream: bool = False
    response_format: dict[str, Any] | None = None

    @property
    def texts(self) -> list[str]:
        return [_text_of(message.get("content")) for message in self.messages]


class EmbeddingRequest(msgspec.Struct):
    input: str | list[str | int | list[int]]
    model: str = "stub"
    encoding_format: str = "float"
    dimensions: int | None = None

    @property
    def texts(self) -> list[str]:
        """Texts to embed. Token numbers are used as words."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if given and all(isinstance(one, int) for one in given):
            return [" ".join(str(one) for one in given)]
        return [" ".join(str(token) for token in one) if isinstance(one, list) else str(one) for one in given]


Script = Callable[[ChatRequest], str]


class ActiveFaults(msgspec.Struct):
    """Active faults."""

    fail_next: int = 0
    status: int = 500
    delay_s: float = 0.0
    hang: bool = False
    refuse: str = ""
    """Fail only the requests that contain this word."""


class BackendModel(HttpServer):
    def __init__(self, script: Script | None = None, *, dimensions: int = DIMENSIONS) -> None:
        super().__init__()
        self._script: Script = script or (lambda asked: reply_to(asked.texts, asked.response_format))
        self._dimensions = dimensions
        self._faults = ActiveFaults()
        self.asked: Counter[str] = Counter()
        """Number of requests by path, including failed ones."""
        self.failed = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def fail_next(self, times: int, status: int = 500) -> None:
        self._faults = ActiveFaults(fail_next=times, status=status)

    def refuse(self, word: str) -> None:
        """Fail every request that contains this word until `heal`."""
        self._faults = ActiveFaults(refuse=word)

    def delay(self, seconds: float) -> None:
        self._faults = ActiveFaults(delay_s=seconds)

    def hang(self) -> None:
        """Answer no request until `heal`."""
        self._faults = ActiveFaults(hang=True)

    def heal(self) -> None:
        self._faults = ActiveFaults()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, received = await read_request(reader)
        path = received.path.partition("?")[0]
        if path != "/faults":
            self.asked[path] += 1
            if await self._inject_fault(reader, received.body):
                return await respond(writer, self._faults.status, b'{"error":{"message":"injected fault"}}')
        try:
            return await self._answer(method, path, received.body, writer)
        except msgspec.DecodeError as error:
            return await respond(writer, 400, msgspec.json.encode({"error": {"message": str(error)}}))

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        match method, path:
            case _, "/faults":
                return await self._set_faults(writer, body)
            case "GET", "/v1/models":
                models = [{"id": "stub", "object": "model", "created": 0, "owned_by": "everthread"}]
                return await respond(writer, 200, msgspec.json.encode({"object": "list", "data": models}))
            case "POST", "/v1/embeddings":
                return await self._embed(writer, body)
            case "POST", "/v1/chat/completions":
                return await self._chat(writer, body)
            case _:
                return await respond(writer, 404, b'{"error":{"message":"no such path"}}')

    async def _set_faults(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        self._faults = msgspec.json.decode(body or b"{}", type=ActiveFaults)
        return await respond(writer, 200, msgspec.json.encode({"asked": dict(self.asked), "failed": self.failed}))

    async def _inject_fault(self, reader: asyncio.StreamReader, body: bytes) -> bool:
        """Apply the ordered delay or hang. Return True if the request must fail."""
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        while self._faults.hang:
            if reader.at_eof():
                raise ConnectionError("the client has gone")
            await asyncio.sleep(_LOOK_S)
        if self._faults.refuse and self._faults.refuse.encode() in body:
            self.failed += 1
            return True
        if self._faults.fail_next <= 0:
            return False
        self._faults.fail_next -= 1
        self.failed += 1
        return True

    async def _embed(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        wanted = msgspec.json.decode(body, type=EmbeddingRequest)
        vectors = [embed(text, wanted.dimensions or self._dimensions) for text in wanted.texts]
        packed = wanted.encoding_format == "base64"
        found = [
            {"object": "embedding", "index": place, "embedding": encode_base64(vector) if packed else vector}
            for place, vector in enumerate(vectors)
        ]
        tokens = sum(len(text.split()) for text in wanted.texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": found, "model": wanted.model, "usage": usage}
        return await respond(writer, 200, msgspec.json.encode(answer))

    async def _chat(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        asked = msgspec.json.decode(body, type=ChatRequest)
        say = Say(self._script(asked))
        if not asked.stream:
            return await respond(writer, 200, chat_completion(say, asked.model))
        writer.write(head_of(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))
        for piece in (*frames(Protocol.CHAT, say, asked.model), b""):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        return True


def _text_of(content: object) -> str:
    """Return the text of a message, given as a string or in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [cast("dict[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, dict)]
        return "\n".join(str(part.get("text", "")) for part in parts)
    return ""


def main() -> None:
    parser = process_parser("backend_model.server", "Stub model for memory back ends.")
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS, help="length of an embedding")
    options = parser.parse_args()
    BackendModel(dimensions=options.dimensions).run_as_process(options.port)


if __name__ == "__main__":
    main()
