"""Local model: SmolLM2-135M-Instruct in a child process, for a chat without a key or a server.

It is a demonstration, not an assistant. The child process serves the OpenAI protocol on loopback; this adapter starts
it and uses an ordinary client of that protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import ModelUnavailable, ModelUnknown
from everthread.domain.model import Message
from everthread.ports.model import Answer, Delta, ModelClient, Prompt, Request, Traits

MODEL = "smollm2-135m"
CONTEXT_TOKENS = 2048
"""The model could read four times as much, but reads only about 60 tokens a second."""
OUTPUT_TOKENS_MAX = 256
"""Beyond this it repeats itself."""
START_S_MAX = 60.0
STOP_S_MAX = 2.0

_PROGRAM = Path(__file__).with_name("server.py")
_NO_URL = "http://127.0.0.1:0/v1"

Connect = Callable[[str, str], ModelClient]
"""Make a client of the OpenAI-compatible endpoint with this base URL and key."""


class _ServerGreeting(msgspec.Struct, frozen=True):
    """The only line that the child process writes: its URL and key, or an error."""

    url: str = ""
    key: str = ""
    error: str = ""


class _ServerProcess(Struct, frozen=True):
    process: Process
    base_url: str
    key: str

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None


class LocalModel:
    """A `ModelClient`. A request starts the child process if none is running.

    `folder` is filled by `everthread setup local`.
    """

    def __init__(
        self,
        folder: Path,
        connect: Connect,
        *,
        context_tokens: int = CONTEXT_TOKENS,
        start_s_max: float = START_S_MAX,
    ) -> None:
        self._folder = folder
        self._connect = connect
        self._context_tokens = context_tokens
        self._start_s_max = start_s_max
        # Encodes requests, which do not depend on the URL, before the child process runs.
        self._encoder = connect(_NO_URL, "")
        self._child: _ServerProcess | None = None
        self._starting = asyncio.Lock()

    def traits(self, model: str) -> Traits:
        return Traits(tools=False, context_tokens=self._context_tokens, small=True)

    def head(self, prompt: Prompt) -> bytes:
        return self._encoder.head(prompt)

    def encode(self, messages: Sequence[Message]) -> bytes:
        return self._encoder.encode(messages)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        shortened = _shorten(request)
        for may_retry in (True, False):
            child = await self._ready_process()
            is_empty = True
            # A new client each time: the server closes the connection after each stream without announcing it, so
            # reusing one would fail.
            client = self._connect(child.base_url, child.key)
            try:
                async with contextlib.aclosing(client), contextlib.aclosing(client.stream(shortened)) as pieces:
                    async for piece in pieces:
                        is_empty = False
                        yield piece
                return
            except ModelUnavailable:
                # When a process dies, its connections break before its exit is noticed.
                has_died = await _wait_ended(child.process)
                if not (has_died and may_retry and is_empty):
                    raise

    async def aclose(self) -> None:
        async with self._starting:
            await self._stop()
            await self._encoder.aclose()

    async def _ready_process(self) -> _ServerProcess:
        """Return the running child process, started if necessary."""
        async with self._starting:
            if self._child is not None and self._child.is_alive:
                return self._child
            await self._stop()
            self._child = await self._start()
            return self._child

    async def _start(self) -> _ServerProcess:
        if not (weights := _weights(self._folder)):
            raise ModelUnknown("the local model is not installed; run: everthread setup local")
        # In its own session, so that Ctrl-C in the terminal does not reach it.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_PROGRAM),
            str(self._folder),
            str(weights),
            MODEL,
            str(self._context_tokens),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        try:
            greeting = await self._read_greeting(process)
            return _ServerProcess(process, f"{greeting.url}/v1", greeting.key)
        except BaseException:
            await _stop_process(process)
            raise

    async def _read_greeting(self, process: Process) -> _ServerGreeting:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_s_max):
                line = await process.stdout.readline()
                if not line:
                    code = await process.wait()
                    raise ModelUnavailable(f"the local model ended during its start (exit code {code}); {_REPAIR}")
        except TimeoutError:
            raise ModelUnavailable(f"the local model did not start within {self._start_s_max:g} s; {_REPAIR}") from None
        greeting = msgspec.json.decode(line, type=_ServerGreeting)
        if greeting.error:
            raise ModelUnavailable(f"the local model can't start: {greeting.error}; {_REPAIR}")
        return greeting

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await _stop_process(child.process)


_REPAIR = "try again, or remove its folder (models/local in the home) and run: everthread setup local"


def _shorten(request: Request) -> Request:
    """Limit the answer, and put recall before the question: after it, this model uses only a third of it."""
    tail = request.tail
    if request.recall and tail:
        content = f"{request.recall}\n\nQuestion: {tail[0].content}"
        tail = (replace(tail[0], content=content), *tail[1:])
    output_tokens_max = min(request.output_tokens_max, OUTPUT_TOKENS_MAX)
    return replace(request, tail=tail, recall="", output_tokens_max=output_tokens_max)


def _weights(folder: Path) -> Path | None:
    """Return the model's file. The folder is created atomically, so one file proves that it is complete."""
    return next(iter(sorted(folder.glob("*/*.gguf"))), None)


async def _wait_ended(process: Process) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    return process.returncode is not None


async def _stop_process(process: Process) -> None:
    """Close its input, which asks it to exit; kill it if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await _wait_ended(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
