"""A server as a child process: lines go in, lines come out, and its end is certain.

The child leads a process group of its own. So an interrupt typed at the terminal does not reach it, and what it has
started itself (`npx` starts a shell that starts the server) ends with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from subprocess import PIPE
from typing import cast

from everthread.config.settings import McpServer

MESSAGE_BYTES_MAX = 16_000_000
UNREAD_BYTES_MAX = 64_000_000
STDERR_LINE_BYTES_MAX = 4_000
EOF_S = 1.0
TERM_S = 1.0
KILL_S = 1.0
_LINES_WAITING_MAX = 64
_PASSED_ON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"})


def child_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """What a child gets to see: where things are and how to write, never a key that was not meant for it."""
    passed_on = {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    return passed_on | dict(configured)


class Child(asyncio.SubprocessProtocol):
    """A running server. `lines` are what it writes, and `None` when there won't be any more."""

    def __init__(self, on_stderr: Callable[[str], None]) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.fault = ""
        """What it has done that nobody can work with."""
        self._on_stderr = on_stderr
        self._exited = asyncio.Event()
        self._stdout = _Lines()
        self._stderr = _Lines()

    @classmethod
    async def spawned(cls, server: McpServer, environ: Mapping[str, str], on_stderr: Callable[[str], None]) -> Child:
        """Raises `OSError` if it can't be started, and `ValueError` for what no command can hold."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_stderr),
            server.command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=server.cwd,
            env=child_environment(environ, server.env),
            start_new_session=True,
        )
        return child

    # The protocol of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._in = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._out = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            for line in self._stderr.feed(data, STDERR_LINE_BYTES_MAX):
                self._on_stderr(line.decode(errors="replace"))
            return
        for line in self._stdout.feed(data, None):
            self.lines.put_nowait(line)
        if self._stdout.unfinished > MESSAGE_BYTES_MAX:
            self._end(f"it sent a message of more than {MESSAGE_BYTES_MAX // 1_000_000} MB")
        elif self.lines.qsize() > _LINES_WAITING_MAX:
            self._out.pause_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.lines.put_nowait(None)

    def process_exited(self) -> None:
        self._exited.set()

    # What the session asks for.

    async def line(self) -> bytes | None:
        line = await self.lines.get()
        if self.lines.empty() and not self._out.is_closing():
            self._out.resume_reading()
        return line

    def write(self, line: bytes) -> bool:
        """Whether it was taken: a server that is gone, or reads nothing, is given nothing more."""
        if self._in.is_closing():
            return False
        if self._in.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._end("it does not read what it is sent")
            return False
        self._in.write(line)
        return True

    async def exit_status(self, within_s: float) -> int | None:
        await self._gone(within_s)
        return self._transport.get_returncode()

    async def stop(self) -> None:
        """End it: by the end of its input, by asking, by force. Never longer than the three bounds together."""
        try:
            self._in.close()
            if not await self._gone(EOF_S):
                self._signal(signal.SIGTERM)
                await self._gone(TERM_S)
            # Also for what a server that is gone has left behind.
            self._signal(signal.SIGKILL)
            await self._gone(KILL_S)
        finally:
            if not self._exited.is_set():
                self._signal(signal.SIGKILL)
            self._transport.close()

    def _end(self, fault: str) -> None:
        self.fault = fault
        self._out.close()
        self._in.close()

    def _signal(self, number: signal.Signals) -> None:
        # The group has the child's pid, and keeps it while anybody is in it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), number)

    async def _gone(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._exited.wait()
        return self._exited.is_set()


class _Lines:
    """Puts lines together from the pieces that a pipe delivers."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def unfinished(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes, bytes_max: int | None) -> list[bytes]:
        """The lines that are whole now. With a bound, one that grows beyond it is taken for whole."""
        *ends, rest = data.split(b"\n")
        lines = [self._taken(end) for end in ends]
        self._rest += rest
        if bytes_max is not None and len(self._rest) > bytes_max:
            lines.append(self._taken(b""))
        return lines

    def _taken(self, end: bytes) -> bytes:
        line = bytes(self._rest + end)
        self._rest.clear()
        return line
