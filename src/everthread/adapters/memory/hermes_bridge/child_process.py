"""Child process of one user's plugin: start it, exchange requests over a socket, kill its process group."""

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
STOP_S_MAX = 5.0
DISCONNECT_S_MAX = 1.0
_PROGRAM = Path(__file__).with_name("plugin_host.py")


class PluginResponse(Struct, frozen=True):
    """Response of the child process to one request: a result, or an error and its kind."""

    id: int
    value: str | None = None
    left: tuple[str, ...] = ()
    """Sessions whose instances have shut down properly."""
    error: str = ""
    kind: str = ""
    hermes: str = ""
    description: str = ""
    available: bool = False
    hooks: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    plugins: tuple[dict[str, Any], ...] = ()


class PluginFailed(Exception):
    """The plugin raised or logged an error. `kind` is `refused`, `outage` or `failed`."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class PluginProcess:
    """One process. It is not restarted: make another one."""

    def __init__(self, provider: str, process: Process, own_socket: socket.socket, log: PluginLog) -> None:
        self._provider = provider
        self._process = process
        self._socket = own_socket
        self._log = log
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[PluginResponse]] = {}
        self._end_reason = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, provider: str, python: Path, home: Path, log: Path) -> PluginProcess:
        """Start the process. Raises `BadConfig` if the interpreter can't be started."""
        own_socket, child_socket = socket.socketpair()
        with child_socket:
            environment = restricted_environment(HERMES_HOME=str(home), PYTHONUNBUFFERED="1", PYTHONUTF8="1")
            try:
                # In its own session: Ctrl-C in the terminal does not reach it, and a kill ends its children too.
                process = await asyncio.create_subprocess_exec(
                    str(python),
                    str(_PROGRAM),
                    str(child_socket.fileno()),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    env=environment,
                    cwd=home,
                    pass_fds=(child_socket.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                own_socket.close()
                raise BadConfig(
                    f"{provider}: {python} can't be started ({error.strerror}); "
                    f"run: everthread setup memory builtin {provider if ':' in provider else 'hermes:holographic'}, "
                    "or name an interpreter that has hermes-agent as memory.hermes.python"
                ) from None
        child = cls(provider, process, own_socket, PluginLog(log))
        await child._connect()
        return child

    @property
    def is_alive(self) -> bool:
        """False once the process, or the event loop that it was started in, has ended."""
        return (
            self._process.returncode is None
            and not self._end_reason
            and not any(task.done() for task in self._tasks[:1])
        )

    async def request(self, op: str, request: Mapping[str, Any], bound_s: float) -> PluginResponse:
        """Send a request and wait for the response. The process is killed if that takes longer than `bound_s`.

        Raises `PluginFailed`, or `Unavailable` if the process has ended.
        """
        if not self.is_alive or self._writer is None:
            raise Unavailable(self._provider, self._end_reason or "the plugin's process has ended")
        id = next(self._ids)
        body = msgspec.json.encode({**request, "id": id, "op": op})
        if len(body) > FRAME_BYTES_MAX:
            raise PluginFailed(f"an entry of {len(body):,} bytes is too large for a plugin", "refused")
        loop = asyncio.get_running_loop()
        future = self._pending[id] = loop.create_future()
        overdue = loop.call_later(bound_s, self.kill, f"no answer within {bound_s:g} s; its process was killed")
        future.add_done_callback(lambda done: (overdue.cancel(), done.cancelled() or done.exception()))
        self._writer.write(struct.pack(">I", len(body)) + body)
        response = await asyncio.shield(future)
        if response.error:
            raise PluginFailed(response.error, response.kind)
        return response

    def kill(self, reason: str) -> None:
        """Kill the process group, and fail the pending requests with the reason."""
        self._end_reason = self._end_reason or reason
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._fail_pending()

    async def aclose(self) -> tuple[str, ...]:
        """Stop the process, and return the sessions whose instances have shut down properly."""
        left: tuple[str, ...] = ()
        try:
            if self.is_alive:
                left = (await self.request("end", {}, STOP_S_MAX)).left
        except (PluginFailed, Unavailable):
            pass
        finally:
            self.kill("is shut down")
            await self._wait_closed()
        return left

    async def _wait_closed(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        await self._process.wait()

    async def _connect(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=1 << 20)
        assert self._process.stderr is not None
        self._tasks = [
            asyncio.ensure_future(self._read_responses(reader)),
            asyncio.ensure_future(self._log.follow(self._process.stderr)),
        ]

    async def _read_responses(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                [size] = struct.unpack(">I", await reader.readexactly(4))
                if size > FRAME_BYTES_MAX:
                    raise msgspec.DecodeError("too long")
                response = msgspec.json.decode(await reader.readexactly(size), type=PluginResponse)
                future = self._pending.pop(response.id, None)
                if future is not None and not future.done():
                    future.set_result(response)
        except (asyncio.IncompleteReadError, OSError):
            await self._on_disconnect()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.kill(f"the plugin's process sent a response that can't be read ({type(error).__name__})")
        finally:
            self._fail_pending()

    async def _on_disconnect(self) -> None:
        """The child has closed its socket, usually by exiting; otherwise kill it."""
        try:
            async with asyncio.timeout(DISCONNECT_S_MAX):
                code = await self._process.wait()
        except TimeoutError:
            self.kill("the plugin's process closed its connection and was killed")
        else:
            self._end_reason = self._end_reason or f"the plugin's process has ended (exit code {code})"

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(Unavailable(self._provider, self._end_reason or "the plugin's process has ended"))
