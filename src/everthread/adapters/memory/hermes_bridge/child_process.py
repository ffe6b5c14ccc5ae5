"""The child process of one person's plugin: started, asked over a socket, and killed with all it has started."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import struct
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from everthread.adapters.memory.common.child_env import restricted_environment
from everthread.adapters.memory.hermes_bridge.plugin_log import PluginLog
from everthread.domain.errors import BadConfig, Unavailable

FRAME_BYTES_MAX = 64 * 1024 * 1024
END_S_MAX = 5.0
HUNG_UP_S_MAX = 1.0
_CHILD = Path(__file__).with_name("plugin_host.py")


class Answer(Struct, frozen=True):
    """What the child says to one request: what was asked for, or an error and its kind."""

    id: int
    value: str | None = None
    left: tuple[str, ...] = ()
    """Sessions whose instances were let go, and hold nothing back."""
    error: str = ""
    kind: str = ""
    hermes: str = ""
    description: str = ""
    available: bool = False
    hooks: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    plugins: tuple[dict[str, Any], ...] = ()


class Failed(Exception):
    """The plugin has raised something, or said that it could not do what it was told. `kind` as the child has it."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Child:
    """One process. Once it has ended, for whatever reason, it is of no more use."""

    def __init__(self, provider: str, process: Process, ours: socket.socket, log: PluginLog) -> None:
        self._provider = provider
        self._process = process
        self._socket = ours
        self._log = log
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._why = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, provider: str, python: Path, home: Path, log: Path) -> Child:
        """Nothing is asked of it yet. Raises `BadConfig` if there is no such interpreter."""
        ours, theirs = socket.socketpair()
        with theirs:
            environment = restricted_environment(HERMES_HOME=str(home), PYTHONUNBUFFERED="1", PYTHONUTF8="1")
            try:
                # In a session of its own: Ctrl-C in the terminal stops an answer, and a kill finds all it has started.
                process = await asyncio.create_subprocess_exec(
                    *(str(python), str(_CHILD), str(theirs.fileno())),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    env=environment,
                    cwd=home,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise BadConfig(
                    f"{provider}: {python} can't be started ({error.strerror}); "
                    f"run: everthread setup memory builtin {provider if ':' in provider else 'hermes:holographic'}, "
                    "or name an interpreter that has hermes-agent as memory.hermes.python"
                ) from None
        child = cls(provider, process, ours, PluginLog(log))
        await child._open()
        return child

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked. Nobody listens to it any more once the loop that it was started in ends."""
        return self._process.returncode is None and not self._why and not any(task.done() for task in self._tasks[:1])

    async def ask(self, op: str, request: Mapping[str, Any], bound_s: float) -> Answer:
        """What it answers. It is killed if that takes longer than `bound_s`, whether or not somebody still waits.

        Raises `Failed`, or `Unavailable` if the process has ended.
        """
        if not self.is_alive or self._writer is None:
            raise Unavailable(self._provider, self._why or "the plugin's process has ended")
        number = next(self._numbers)
        body = msgspec.json.encode({**request, "id": number, "op": op})
        if len(body) > FRAME_BYTES_MAX:
            raise Failed(f"an entry of {len(body):,} bytes is too long for a plugin", "refused")
        loop = asyncio.get_running_loop()
        future = self._waiting[number] = loop.create_future()
        overdue = loop.call_later(bound_s, self.kill, f"no answer within {bound_s:g} s; its process was ended")
        future.add_done_callback(lambda done: (overdue.cancel(), done.cancelled() or done.exception()))
        self._writer.write(struct.pack(">I", len(body)) + body)
        answer = await asyncio.shield(future)
        if answer.error:
            raise Failed(answer.error, answer.kind)
        return answer

    def kill(self, why: str) -> None:
        """End it at once, with everything it has started. Those that wait are told why."""
        self._why = self._why or why
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._let_down()

    async def aclose(self) -> tuple[str, ...]:
        """Ask it to end, and make it; which sessions it let go in good order."""
        left: tuple[str, ...] = ()
        try:
            if self.is_alive:
                left = (await self.ask("end", {}, END_S_MAX)).left
        except (Failed, Unavailable):
            pass
        finally:
            self.kill("is shut down")
            await self._gone()
        return left

    async def _gone(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        await self._process.wait()

    async def _open(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=1 << 20)
        assert self._process.stderr is not None
        self._tasks = [
            asyncio.ensure_future(self._listen(reader)),
            asyncio.ensure_future(self._log.follow(self._process.stderr)),
        ]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                [size] = struct.unpack(">I", await reader.readexactly(4))
                if size > FRAME_BYTES_MAX:
                    raise msgspec.DecodeError("too long")
                answer = msgspec.json.decode(await reader.readexactly(size), type=Answer)
                future = self._waiting.pop(answer.id, None)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            await self._hung_up()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.kill(f"the plugin's process sent what can't be read ({type(error).__name__})")
        finally:
            self._let_down()

    async def _hung_up(self) -> None:
        """Its end of the socket is closed: as a rule because it has ended, and else it is of no more use."""
        try:
            async with asyncio.timeout(HUNG_UP_S_MAX):
                code = await self._process.wait()
        except TimeoutError:
            self.kill("the plugin's process has closed its connection; it was ended")
        else:
            self._why = self._why or f"the plugin's process has ended (exit code {code})"

    def _let_down(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable(self._provider, self._why or "the plugin's process has ended"))
