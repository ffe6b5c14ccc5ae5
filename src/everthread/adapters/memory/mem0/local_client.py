"""Mem0's library in a child process: our end of it.

The library is slow to import, blocks whoever calls it, and can hang. So it has a process of its own, which is started
in the background, spoken to in lines of JSON, and killed if it has not answered for long. Nothing is lost by that: see
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

from everthread.adapters.memory.common.child_env import environment_for_others
from everthread.adapters.memory.common.encoding import encoded
from everthread.adapters.memory.mem0.codec import Entry, Remembered
from everthread.domain.errors import ProviderError, Rejected, Unavailable
from everthread.domain.model import FORGOTTEN

START_S_MAX = 60.0
END_S_MAX = 2.0
REQUEST_S_MAX = 40.0
"""How long the library waits for its model."""
HUNG_S_MAX = 90.0
"""A request that was not answered for so long never will be: the child is killed, and another started."""
WAITING_MAX = 32
ODD_ATTEMPTS_MAX = 3
"""What nobody can say of whether it would be taken another time is tried so often."""
LINE_BYTES_MAX = 64 * 1024 * 1024
_CHILD = Path(__file__).with_name("child") / "__main__.py"


class Endpoint(Struct, frozen=True):
    """An OpenAI-compatible one."""

    model: str
    url: str
    key: str

    # It has a key in it.
    __repr__ = object.__repr__


class Told(Struct, frozen=True):
    """The first line that a child is told."""

    folder: str
    llm: Endpoint
    embedder: Endpoint
    request_s: float


class _Greeting(Struct, frozen=True):
    ready: bool = False
    missing: str = ""
    error: str = ""


class _Answer(Struct, frozen=True):
    id: int
    found: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    error: str = ""
    kind: str = ""


class _Failed(Exception):
    """What the child says of a request."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class _Child:
    """A process that is ready, and the requests that it has not answered yet."""

    def __init__(self, provider: str, process: Process) -> None:
        self._provider = provider
        self.process = process
        self.waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last = 0
        self._listening = asyncio.ensure_future(self._listen())

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None and not self._listening.done()

    def send(self, request: dict[str, Any]) -> asyncio.Future[msgspec.Raw]:
        """The answer is for whoever waits; if nobody does any more, it is dropped when it comes."""
        if len(self.waiting) >= WAITING_MAX:
            raise Unavailable(self._provider, f"{len(self.waiting)} requests were not answered yet")
        assert self.process.stdin is not None
        loop = asyncio.get_running_loop()
        self._last += 1
        answered = self.waiting[self._last] = loop.create_future()
        overdue = loop.call_later(HUNG_S_MAX, self.kill)
        answered.add_done_callback(lambda done: (overdue.cancel(), done.cancelled() or done.exception()))
        self.process.stdin.write(msgspec.json.encode({"id": self._last, **request}) + b"\n")
        return answered

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._take(msgspec.json.decode(line, type=_Answer))
        except (ValueError, msgspec.DecodeError, ConnectionError):
            # A line that is too long, or none of ours. What it was for can't be told, so nobody is left waiting.
            self.kill()
        finally:
            for answered in self.waiting.values():
                if not answered.done():
                    answered.set_exception(_Failed("later", "its process ended in the middle of it"))
            self.waiting.clear()

    def _take(self, answer: _Answer) -> None:
        answered = self.waiting.pop(answer.id, None)
        if answered is None or answered.done():
            return
        if answer.error:
            answered.set_exception(_Failed(answer.kind, answer.error))
        else:
            answered.set_result(answer.found)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """The end of its input asks it to, and a signal makes it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await _ended(self.process)
        await asyncio.wait({self._listening}, timeout=END_S_MAX)


class Library:
    def __init__(self, provider: str, told: Told, python: str = "") -> None:
        self._provider = provider
        self._told = told
        self._python = python or sys.executable
        self._child: _Child | None = None
        self._starting: asyncio.Future[_Child] | None = None
        # Of each entry, the request that was last made: whoever asks again waits for the same one.
        self._adding: dict[tuple[str, str, str], asyncio.Future[msgspec.Raw]] = {}

    async def begin(self) -> None:
        """Have a process ready, which takes seconds."""
        await self._running()

    async def aclose(self) -> None:
        if (starting := self._starting) is not None:
            starting.cancel()
            await asyncio.wait({starting})
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    # What it does -----------------------------------------------------------------------------------------------------

    async def add(self, owner: str, entry: Entry) -> None:
        person, run = encoded(owner), encoded(entry.session_id)
        key = (person, run, entry.key)
        adding = self._adding.get(key)
        if adding is None or adding.done():
            messages = [{"role": who, "content": words} for who, words in entry.messages]
            more = {"run": run, "messages": messages, "metadata": entry.metadata, "infer": entry.infer}
            adding = self._adding[key] = await self._sent("add", person=person, **more)
            adding.add_done_callback(lambda done: self._adding.get(key) is done and self._adding.pop(key))
        await self._answered(adding, entry.attempt)

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Remembered]:
        found = await self._asked("search", person=encoded(owner), query=query, limit=limit)
        return msgspec.json.decode(found, type=list[Remembered])

    async def listed(self, owner: str, limit: int, **about: str | int) -> Sequence[Remembered]:
        found = await self._asked("listed", person=encoded(owner), limit=limit, about=about)
        return msgspec.json.decode(found, type=list[Remembered])

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        if ids:
            await self._asked("remove", person=encoded(owner), ids=list(ids))

    async def close(self, owner: str, session_id: str) -> None:
        """Nothing is left to do: each entry was in its files before it was taken for delivered, and none twice."""

    async def forget_session(self, owner: str, session_id: str) -> None:
        await self._asked("forget_run", person=encoded(owner), run=encoded(session_id))

    async def forget_person(self, owner: str) -> None:
        await self._asked("forget_person", person=encoded(owner))

    async def forget_words(self, owner: str, words: str) -> None:
        await self._asked("forget_words", person=encoded(owner), words=words, instead=FORGOTTEN)

    async def check(self) -> None:
        await self._asked("check")

    # ------------------------------------------------------------------------------------------------------------------

    async def _asked(self, do: str, **more: Any) -> msgspec.Raw:
        return await self._answered(await self._sent(do, **more), ODD_ATTEMPTS_MAX)

    async def _sent(self, do: str, **more: Any) -> asyncio.Future[msgspec.Raw]:
        return (await self._running()).send({"do": do, **more})

    async def _answered(self, answered: asyncio.Future[msgspec.Raw], attempt: int) -> msgspec.Raw:
        """Who stops waiting leaves the request as it is: it can't be taken back."""
        try:
            return await asyncio.shield(answered)
        except _Failed as failed:
            is_hopeless = failed.kind == "never" or (failed.kind == "odd" and attempt >= ODD_ATTEMPTS_MAX)
            raise (Rejected if is_hopeless else Unavailable)(self._provider, str(failed)) from None

    async def _running(self) -> _Child:
        child = self._child
        if child is not None and child.is_alive:
            return child
        return await asyncio.shield(self._start())

    def _start(self) -> asyncio.Future[_Child]:
        """Start a child, unless one is being started."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._started())
            self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._starting

    async def _started(self) -> _Child:
        try:
            child, self._child = self._child, None
            if child is not None:
                await child.end()
            self._child = _Child(self._provider, await self._spoken_to())
            return self._child
        finally:
            self._starting = None

    async def _spoken_to(self) -> Process:
        try:
            # In a session of its own: Ctrl-C in the terminal is not for it.
            process = await asyncio.create_subprocess_exec(
                *(self._python, "-I", str(_CHILD)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=environment_for_others(),
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            raise self._down(f"{self._python} can't be started ({type(error).__name__}); check `python`") from None
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
        process.stdin.write(msgspec.json.encode(self._told) + b"\n")
        try:
            async with asyncio.timeout(START_S_MAX):
                greeting = msgspec.json.decode(await process.stdout.readline() or b"{}", type=_Greeting)
        except TimeoutError:
            raise self._down(f"its process did not start within {START_S_MAX:g} s") from None
        except (ValueError, msgspec.DecodeError):
            raise self._down("its process says what can't be read") from None
        if greeting.missing:
            raise self._down(
                f"{greeting.missing} is not installed for {self._python}; run: pip install 'everthread[mem0]', "
                "or name a Python that has it under `python`"
            )
        if not greeting.ready:
            raise self._down(f"its process can't start: {greeting.error or 'it ended'}")

    def _down(self, words: str) -> ProviderError:
        return Unavailable(self._provider, words)


async def _ended(process: Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S_MAX):
            await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
