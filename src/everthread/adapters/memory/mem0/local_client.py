"""Client of Mem0's library in a child process.

The library is slow to import, blocks its caller, and can hang. So it runs in a child process that exchanges lines of
JSON with this one and is killed when it does not answer. Nothing is lost by that: see
docs/adr/0039-mem0-in-a-child-process.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from everthread.adapters.memory.common.child_env import restricted_environment
from everthread.adapters.memory.common.encoding import encode_id
from everthread.adapters.memory.mem0.codec import Mem0Entry, Mem0Memory
from everthread.domain.errors import ProviderError, Rejected, Unavailable
from everthread.domain.model import FORGOTTEN
from everthread.log_context import outside_log_scope

START_S_MAX = 60.0
STOP_S_MAX = 2.0
REQUEST_S_MAX = 40.0
"""Time limit of the library for its model."""
HUNG_S_MAX = 90.0
"""A request without a response for this long: the child process is killed, and restarted for the next one."""
PENDING_MAX = 32
UNCLEAR_ATTEMPTS_MAX = 3
"""Attempts at an entry whose failure may be permanent or not."""
LINE_BYTES_MAX = 64 * 1024 * 1024
_PROGRAM = Path(__file__).with_name("child") / "__main__.py"


class ModelEndpoint(Struct, frozen=True):
    """An OpenAI-compatible endpoint."""

    model: str
    url: str
    key: str

    # Keep the key out of logs.
    __repr__ = object.__repr__


class ChildSettings(Struct, frozen=True):
    """First line sent to the child process."""

    folder: str
    llm: ModelEndpoint
    embedder: ModelEndpoint
    request_s: float


class _Mem0Greeting(Struct, frozen=True):
    ready: bool = False
    missing: str = ""
    error: str = ""


class _ChildResponse(Struct, frozen=True):
    id: int
    found: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    error: str = ""
    kind: str = ""


class _RequestFailed(Exception):
    """The child process reports that a request failed. `kind` is `later`, `never` or `odd`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Mem0Process:
    """A running child process and its pending requests."""

    def __init__(self, provider: str, process: Process) -> None:
        self._provider = provider
        self.process = process
        self.pending: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0
        self._reader = outside_log_scope(lambda: asyncio.ensure_future(self._read_responses()))

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None and not self._reader.done()

    def send(self, request: dict[str, Any]) -> asyncio.Future[msgspec.Raw]:
        """Send a request and return a future of its response."""
        if len(self.pending) >= PENDING_MAX:
            raise Unavailable(self._provider, f"{len(self.pending)} requests are pending")
        assert self.process.stdin is not None
        loop = asyncio.get_running_loop()
        self._last_id += 1
        response = self.pending[self._last_id] = loop.create_future()
        overdue = loop.call_later(HUNG_S_MAX, self.kill)
        response.add_done_callback(lambda done: (overdue.cancel(), done.cancelled() or done.exception()))
        self.process.stdin.write(msgspec.json.encode({"id": self._last_id, **request}) + b"\n")
        return response

    async def _read_responses(self) -> None:
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._resolve(msgspec.json.decode(line, type=_ChildResponse))
        except (ValueError, msgspec.DecodeError, ConnectionError):
            # A line that is too long or not ours: its request is unknown, so all pending ones fail.
            self.kill()
        finally:
            for response in self.pending.values():
                if not response.done():
                    response.set_exception(_RequestFailed("later", "its process ended during the request"))
            self.pending.clear()

    def _resolve(self, answer: _ChildResponse) -> None:
        response = self.pending.pop(answer.id, None)
        if response is None or response.done():
            return
        if answer.error:
            response.set_exception(_RequestFailed(answer.kind, answer.error))
        else:
            response.set_result(answer.found)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> None:
        """Close its input, which asks it to exit; kill it if it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await _wait_or_kill(self.process)
        await asyncio.wait({self._reader}, timeout=STOP_S_MAX)


class Mem0LocalClient:
    def __init__(self, provider: str, settings: ChildSettings, python: str = "") -> None:
        self._provider = provider
        self._settings = settings
        self._python = python or sys.executable
        self._child: _Mem0Process | None = None
        self._starting: asyncio.Future[_Mem0Process] | None = None
        # Pending request of each entry: a retry waits for the same one.
        self._adding: dict[tuple[str, str, str], asyncio.Future[msgspec.Raw]] = {}

    async def start(self) -> None:
        """Start the child process, which takes seconds."""
        await self._ready_process()

    async def aclose(self) -> None:
        if (starting := self._starting) is not None:
            starting.cancel()
            await asyncio.wait({starting})
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    # Requests ---------------------------------------------------------------------------------------------------------

    async def add(self, owner: str, entry: Mem0Entry) -> None:
        person, run = encode_id(owner), encode_id(entry.session_id)
        key = (person, run, entry.key)
        request = self._adding.get(key)
        if request is None or request.done():
            messages = [{"role": role, "content": text} for role, text in entry.messages]
            more = {"run": run, "messages": messages, "metadata": entry.metadata, "infer": entry.infer}
            request = self._adding[key] = await self._send("add", person=person, **more)
            request.add_done_callback(lambda done: self._adding.get(key) is done and self._adding.pop(key))
        await self._result(request, entry.attempt)

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Mem0Memory]:
        found = await self._request("search", person=encode_id(owner), query=query, limit=limit)
        return msgspec.json.decode(found, type=list[Mem0Memory])

    async def memories(self, owner: str, limit: int, **about: str | int) -> Sequence[Mem0Memory]:
        found = await self._request("listed", person=encode_id(owner), limit=limit, about=about)
        return msgspec.json.decode(found, type=list[Mem0Memory])

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        if ids:
            await self._request("remove", person=encode_id(owner), ids=list(ids))

    async def close(self, owner: str, session_id: str) -> None:
        """Do nothing: an added entry is in the library's files, once."""

    async def forget_session(self, owner: str, session_id: str) -> None:
        await self._request("forget_run", person=encode_id(owner), run=encode_id(session_id))

    async def forget_owner(self, owner: str) -> None:
        await self._request("forget_person", person=encode_id(owner))

    async def forget_text(self, owner: str, text: str) -> None:
        await self._request("forget_words", person=encode_id(owner), words=text, instead=FORGOTTEN)

    async def check(self) -> None:
        await self._request("check")

    # ------------------------------------------------------------------------------------------------------------------

    async def _request(self, do: str, **more: Any) -> msgspec.Raw:
        return await self._result(await self._send(do, **more), UNCLEAR_ATTEMPTS_MAX)

    async def _send(self, do: str, **more: Any) -> asyncio.Future[msgspec.Raw]:
        return (await self._ready_process()).send({"do": do, **more})

    async def _result(self, response: asyncio.Future[msgspec.Raw], attempt: int) -> msgspec.Raw:
        """Wait for a response. Cancelling the caller does not cancel the request."""
        try:
            return await asyncio.shield(response)
        except _RequestFailed as error:
            is_permanent = error.kind == "never" or (error.kind == "odd" and attempt >= UNCLEAR_ATTEMPTS_MAX)
            raise (Rejected if is_permanent else Unavailable)(self._provider, str(error)) from None

    async def _ready_process(self) -> _Mem0Process:
        child = self._child
        if child is not None and child.is_alive:
            return child
        return await asyncio.shield(self._start_once())

    def _start_once(self) -> asyncio.Future[_Mem0Process]:
        """Start a child process, unless one is starting already."""
        if self._starting is None:
            self._starting = outside_log_scope(lambda: asyncio.ensure_future(self._restart()))
            self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._starting

    async def _restart(self) -> _Mem0Process:
        try:
            child, self._child = self._child, None
            if child is not None:
                await child.stop()
            self._child = _Mem0Process(self._provider, await self._spawn())
            return self._child
        finally:
            self._starting = None

    async def _spawn(self) -> Process:
        try:
            # In its own session, so that Ctrl-C in the terminal does not reach it.
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-I",
                str(_PROGRAM),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=restricted_environment(),
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            raise self._unavailable(
                f"{self._python} can't be started ({type(error).__name__}); check `python`"
            ) from None
        try:
            await self._greet(process)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return process

    async def _greet(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        try:
            async with asyncio.timeout(START_S_MAX):
                greeting = msgspec.json.decode(await process.stdout.readline() or b"{}", type=_Mem0Greeting)
        except TimeoutError:
            raise self._unavailable(f"its process did not start within {START_S_MAX:g} s") from None
        except (ValueError, msgspec.DecodeError):
            raise self._unavailable("its process sent a line that can't be read") from None
        if greeting.missing:
            raise self._unavailable(
                f"{greeting.missing} is not installed for {self._python}; run: pip install 'everthread[mem0]', "
                "or name a Python that has it under `python`"
            )
        if not greeting.ready:
            raise self._unavailable(f"its process can't start: {greeting.error or 'it exited'}")

    def _unavailable(self, message: str) -> ProviderError:
        return Unavailable(self._provider, message)


async def _wait_or_kill(process: Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
