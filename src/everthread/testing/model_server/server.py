"""Stub server of models: speaks Chat Completions and Anthropic Messages, with scripted replies.

In a test:

    async with ModelServer([Say("Hello."), Fail(429, "slow down", headers={"Retry-After": "2"})]) as server:
        client = OpenAICompat(server.base_url, "key")

As a process, which keeps the server's CPU time out of the test's: `python -m everthread.testing.model_server.server
--port 0` prints its port as one line and answers every request with the same 60 words, or with `--echo` quotes the last
user message.

It is as strict as real endpoints: see `validation`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from everthread.domain.model import ToolCall
from everthread.testing.model_server.http import HttpRequest, HttpServer, head_of, process_parser, read_request, respond
from everthread.testing.model_server.replies import (
    End,
    Fail,
    Protocol,
    Raw,
    ReasoningFormat,
    Reply,
    Say,
    chat_completion,
    encode_failure,
    frames,
)
from everthread.testing.model_server.validation import Chat, Messages, parse_request

Script = Callable[[Chat | Messages], Reply]


class ModelServer(HttpServer):
    """Reply from a list, one item per request, or from a function of the request. With `thinks`, the model reasons
    before it calls a tool and refuses requests that omit its reasoning. Requests are recorded unless `on_request`
    receives them.
    """

    def __init__(
        self,
        script: Iterable[Reply] | Script,
        *,
        key: str | None = None,
        models: Sequence[str] = (),
        thinks: ReasoningFormat | None = None,
        on_request: Callable[[HttpRequest], None] | None = None,
    ) -> None:
        super().__init__()
        self._thinks = thinks
        self._script: Script = script if callable(script) else _one_after_the_other(iter(script))
        self._key = key
        self._models = models
        self.received: list[HttpRequest] = []
        self._on_request = on_request or self.received.append
        self.left_early = asyncio.Event()
        """Set when a client disconnects in the middle of an answer."""

    @property
    def requests(self) -> list[bytes]:
        """Request bodies as received."""
        return [received.body for received in self.received]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request. Return True if the connection can be reused."""
        method, received = await read_request(reader)
        path = received.path.partition("?")[0]
        if method == "GET" and path == "/v1/models":
            models = [{"id": model, "object": "model"} for model in self._models or ("stub",)]
            return await respond(writer, 200, msgspec.json.encode({"object": "list", "data": models}))
        if method != "POST" or path not in list(Protocol):
            return await respond(writer, 404, b'{"error":{"message":"no such path"}}')
        self._on_request(received)
        protocol = Protocol(path)
        match self._reply(protocol, received):
            case Fail() as fail, _:
                return await respond(writer, fail.status, encode_failure(protocol, fail), fail.headers)
            case Say() as say, Chat(stream=False) as chat:
                return await respond(writer, 200, chat_completion(say, chat.model))
            case Say() as say, request:
                return await self._stream(reader, writer, say, list(frames(protocol, say, request.model, self._thinks)))
            case Raw() as raw, _:
                return await self._stream(reader, writer, raw, raw.pieces)

    def _reply(self, protocol: Protocol, received: HttpRequest) -> tuple[Fail, None] | tuple[Reply, Chat | Messages]:
        if fail := self._refused(protocol, received.headers):
            return fail, None
        request = parse_request(protocol, received.body, self._thinks)
        if isinstance(request, Fail):
            return request, None
        if self._models and request.model not in self._models:
            kind = "model_not_found" if protocol is Protocol.CHAT else "not_found_error"
            return Fail(404, f"model: {request.model}", kind), None
        return self._script(request), request

    def _refused(self, protocol: Protocol, headers: Mapping[str, str]) -> Fail | None:
        if protocol is Protocol.MESSAGES and "anthropic-version" not in headers:
            return Fail(400, "anthropic-version: header is required", "invalid_request_error")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._key is not None and self._key not in (bearer, headers.get("x-api-key")):
            return Fail(401, f"Incorrect API key provided: {bearer}", "authentication_error")
        return None

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Say | Raw, pieces: Sequence[bytes]
    ) -> bool:
        if reply.end is not End.WHOLE and isinstance(reply, Say):
            pieces = pieces[: len(pieces) // 2]
        content_type = reply.content_type if isinstance(reply, Raw) else "text/event-stream"
        writer.write(head_of(200, {"Content-Type": content_type, "Transfer-Encoding": "chunked"}))
        # A client that waits for an answer sends nothing, so a completed read means that it disconnected.
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            for piece in pieces:
                if reply.delay_s:
                    await asyncio.wait({leaving}, timeout=reply.delay_s)
                if leaving.done():
                    break
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            if reply.end is End.STALL:
                await asyncio.wait({leaving})
            if leaving.done():
                self.left_early.set()
            elif reply.end is End.WHOLE:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            return False
        except ConnectionError:
            self.left_early.set()
            return False
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await leaving


def _one_after_the_other(replies: Iterator[Reply]) -> Script:
    return lambda _: next(replies, Fail(500, "the script has ended"))


# --- As a process --------------------------------------------------------------------------------------------------

WORDS = " ".join(["The stub says these ten plain words in every answer."] * 6)


def fixed_script(tool: ToolCall | None = None, delay_s: float = 0.0, words: str = WORDS) -> Script:
    """Reply the words in 20 chunks. With a tool, call the tool first."""

    def script(request: Chat | Messages) -> Reply:
        if tool is not None and not request.has_tool_result:
            return Say(calls=(tool,), delay_s=delay_s)
        return Say(words, chunks=20, delay_s=delay_s)

    return script


def echo_script(delay_s: float = 0.0, chunks: int = 1) -> Script:
    """Quote the first line of the last user message, without the recalled memory that follows it."""

    def script(request: Chat | Messages) -> Reply:
        words = request.last_user_text.splitlines() or [""]
        return Say(f"You said: {words[0]}", chunks=chunks, delay_s=delay_s)

    return script


def request_logger(file: BinaryIO | None) -> Callable[[HttpRequest], None]:
    """Append each request to a file as a line of JSON. A body that is no JSON is stored as base64."""

    def write(received: HttpRequest) -> None:
        if file is None:
            return
        try:
            body = msgspec.json.decode(received.body, type=msgspec.Raw)
            line = msgspec.json.encode({"path": received.path, "body": body})
        except (msgspec.DecodeError, UnicodeDecodeError):
            line = msgspec.json.encode({"path": received.path, "base64": received.body})
        file.write(line + b"\n")
        file.flush()

    return write


def main() -> None:
    parser = process_parser("model_server.server", "Stub model server.")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="pause before each chunk")
    parser.add_argument("--say", metavar="TEXT", default=WORDS, help="the answer, instead of sixty words")
    parser.add_argument("--echo", action="store_true", help="quote the last user message, instead of sixty words")
    parser.add_argument("--chunks", type=int, default=1, help="number of chunks with --echo")
    parser.add_argument("--tool", metavar="NAME:JSON", help="call this tool first, and answer after its result")
    parser.add_argument("--log", metavar="FILE", help="append each request to this file, one line each")
    parser.add_argument("--key", help="refuse requests without this key")
    options = parser.parse_args()
    name, _, arguments = (options.tool or "").partition(":")
    tool = ToolCall("call_stub", name, arguments or "{}") if name else None
    with contextlib.ExitStack() as files:
        log = files.enter_context(Path(options.log).open("ab")) if options.log else None
        delay_s = options.delay_ms / 1000
        script = echo_script(delay_s, options.chunks) if options.echo else fixed_script(tool, delay_s, options.say)
        ModelServer(script, key=options.key, on_request=request_logger(log)).run_as_process(options.port)


if __name__ == "__main__":
    main()
