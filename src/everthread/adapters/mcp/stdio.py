"""A server as a child process that exchanges lines, with a guaranteed end.

The child leads its own process group. So Ctrl-C in the terminal does not reach it, and processes that it has started
(`npx` starts a shell that starts the server) end with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from subprocess import PIPE
from typing import cast

from everthread.config.schema import McpServer

MESSAGE_BYTES_MAX = 16_000_000
UNREAD_BYTES_MAX = 64_000_000
STDERR_LINE_BYTES_MAX = 4_000
EOF_S = 1.0
TERM_S = 1.0
KILL_S = 1.0
_QUEUED_LINES_MAX = 64
_PASSED_ON = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"})


def server_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: paths and locale, no keys, and what is configured for it."""
    passed_on = {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    return passed_on | dict(configured)


class McpChildProcess(asyncio.SubprocessProtocol):
    """A running server. `lines` holds its output, and `None` at the end."""

    def __init__(self, on_stderr: Callable[[str], None]) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.fault = ""
        """Violation of a limit that ended the connection."""
        self._on_stderr = on_stderr
        self._exited = asyncio.Event()
        self._stdout = _LineBuffer()
        self._stderr = _LineBuffer()

    @classmethod
    async def spawn(
        cls, server: McpServer, environ: Mapping[str, str], on_stderr: Callable[[str], None]
    ) -> McpChildProcess:
        """Start the server. Raises `OSError`, or `ValueError` for an invalid command."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_stderr),
            server.command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=server.cwd,
            env=server_environment(environ, server.env),
            start_new_session=True,
        )
        return child

    # Callbacks of asyncio

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
        if self._stdout.pending_bytes > MESSAGE_BYTES_MAX:
            self._abort(f"it sent a message of more than {MESSAGE_BYTES_MAX // 1_000_000} MB")
        elif self.lines.qsize() > _QUEUED_LINES_MAX:
            self._out.pause_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.lines.put_nowait(None)

    def process_exited(self) -> None:
        self._exited.set()

    # Interface of the connection

    async def read_line(self) -> bytes | None:
        line = await self.lines.get()
        if self.lines.empty() and not self._out.is_closing():
            self._out.resume_reading()
        return line

    def write(self, line: bytes) -> bool:
        """Write a line; False if the server has ended or does not read its input."""
        if self._in.is_closing():
            return False
        if self._in.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._abort("it does not read its input")
            return False
        self._in.write(line)
        return True

    async def exit_status(self, within_s: float) -> int | None:
        await self._wait_exited(within_s)
        return self._transport.get_returncode()

    async def stop(self) -> None:
        """Stop the server: close its input, then SIGTERM, then SIGKILL, each with a time limit."""
        try:
            self._in.close()
            if not await self._wait_exited(EOF_S):
                self._signal(signal.SIGTERM)
                await self._wait_exited(TERM_S)
            # Also kills processes that a server has left behind.
            self._signal(signal.SIGKILL)
            await self._wait_exited(KILL_S)
        finally:
            if not self._exited.is_set():
                self._signal(signal.SIGKILL)
            self._transport.close()

    def _abort(self, fault: str) -> None:
        self.fault = fault
        self._out.close()
        self._in.close()

    def _signal(self, number: signal.Signals) -> None:
        # The id of the group is the child's pid, and stays valid while the group has members.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), number)

    async def _wait_exited(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._exited.wait()
        return self._exited.is_set()


class _LineBuffer:
    """Assembles lines from the chunks of a pipe."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def pending_bytes(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes, bytes_max: int | None) -> list[bytes]:
        """Return the complete lines. A line longer than `bytes_max` is split."""
        *ends, rest = data.split(b"\n")
        lines = [self._take_line(end) for end in ends]
        self._rest += rest
        if bytes_max is not None and len(self._rest) > bytes_max:
            lines.append(self._take_line(b""))
        return lines

    def _take_line(self, end: bytes) -> bytes:
        line = bytes(self._rest + end)
        self._rest.clear()
        return line
