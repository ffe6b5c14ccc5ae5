"""The local model: SmolLM2-135M-Instruct in a child process, so that there is a chat without a key or a server.

It is small: a demonstration, not an assistant. The child speaks the OpenAI protocol on loopback; this adapter adds the
process to a client that speaks the protocol, and nothing else.
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
"""The model could read four times as much, at about 60 tokens a second."""
OUTPUT_TOKENS_MAX = 256
"""Beyond this it repeats itself."""
START_S_MAX = 60.0
END_S_MAX = 2.0

_CHILD = Path(__file__).with_name("server.py")
_NOWHERE = "http://127.0.0.1:0/v1"

Connect = Callable[[str, str], ModelClient]
"""A client of the OpenAI-compatible endpoint at this base URL, with this key."""


class _Greeting(msgspec.Struct, frozen=True):
    """The one line that a child says: where it listens, or why it does not."""

    url: str = ""
    key: str = ""
    error: str = ""


class _Child(Struct, frozen=True):
    process: Process
    base_url: str
    key: str

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None


class LocalModel:
    """A `ModelClient`. Its child is started by the first request, and again by the next one after it has died.

    `folder` is what `everthread setup local` has filled.
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
        # The bytes of a request are the same wherever it is sent, and are wanted before there is a child.
        self._writer = connect(_NOWHERE, "")
        self._child: _Child | None = None
        self._starting = asyncio.Lock()

    def traits(self, model: str) -> Traits:
        return Traits(tools=False, context_tokens=self._context_tokens, small=True)

    def head(self, prompt: Prompt) -> bytes:
        return self._writer.head(prompt)

    def encode(self, messages: Sequence[Message]) -> bytes:
        return self._writer.encode(messages)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        short = _for_a_small_model(request)
        for may_retry in (True, False):
            child = await self._running()
            nothing_yet = True
            # A client of its own: the server ends a connection after each stream without having said that it would, so
            # one that was kept would break under the next request.
            client = self._connect(child.base_url, child.key)
            try:
                async with contextlib.aclosing(client), contextlib.aclosing(client.stream(short)) as pieces:
                    async for piece in pieces:
                        nothing_yet = False
                        yield piece
                return
            except ModelUnavailable:
                # A child that dies is seen to be dead only after its connections have broken.
                died = await _has_ended(child.process)
                if not (died and may_retry and nothing_yet):
                    raise

    async def aclose(self) -> None:
        async with self._starting:
            await self._let_go()
            await self._writer.aclose()

    async def _running(self) -> _Child:
        """The child, which is started if there is none that lives."""
        async with self._starting:
            if self._child is not None and self._child.is_alive:
                return self._child
            await self._let_go()
            self._child = await self._start()
            return self._child

    async def _start(self) -> _Child:
        if not (weights := _weights(self._folder)):
            raise ModelUnknown("the local model is not installed; run: everthread setup local")
        # In a session of its own: Ctrl-C in the terminal stops an answer, not the model.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_CHILD), str(self._folder), str(weights), MODEL, str(self._context_tokens)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        try:
            greeting = await self._greeting_of(process)
            return _Child(process, f"{greeting.url}/v1", greeting.key)
        except BaseException:
            await _end(process)
            raise

    async def _greeting_of(self, process: Process) -> _Greeting:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_s_max):
                line = await process.stdout.readline()
                if not line:
                    code = await process.wait()
                    raise ModelUnavailable(f"the local model ended while it started (exit code {code}); {_MEND}")
        except TimeoutError:
            raise ModelUnavailable(f"the local model did not start within {self._start_s_max:g} s; {_MEND}") from None
        greeting = msgspec.json.decode(line, type=_Greeting)
        if greeting.error:
            raise ModelUnavailable(f"the local model can't start: {greeting.error}; {_MEND}")
        return greeting

    async def _let_go(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await _end(child.process)


_MEND = "try again, or remove its folder (models/local in the home) and run: everthread setup local"


def _for_a_small_model(request: Request) -> Request:
    """A short answer, and recall before the question: behind it, this model takes no more than a third of it in."""
    tail = request.tail
    if request.recall and tail:
        asked = f"{request.recall}\n\nQuestion: {tail[0].content}"
        tail = (replace(tail[0], content=asked), *tail[1:])
    output_tokens_max = min(request.output_tokens_max, OUTPUT_TOKENS_MAX)
    return replace(request, tail=tail, recall="", output_tokens_max=output_tokens_max)


def _weights(folder: Path) -> Path | None:
    """The model's file. The folder appears whole or not at all, so it is enough to look for one."""
    return next(iter(sorted(folder.glob("*/*.gguf"))), None)


async def _has_ended(process: Process) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S_MAX):
            await process.wait()
    return process.returncode is not None


async def _end(process: Process) -> None:
    """End the child: the end of its input asks it to, and a signal makes it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await _has_ended(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
