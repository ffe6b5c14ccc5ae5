"""Read lines from stdin without blocking the exit of the program."""

from __future__ import annotations

import os

from msgspec import Struct

from everthread.concurrency import in_daemon_thread
from everthread.lifecycle import TEXT_CHARS_MAX

LINE_BYTES_MAX = 4 * TEXT_CHARS_MAX + 4
"""More than a message may have in any encoding: a line cut off here is rejected as too long later."""
INVALID_UTF8 = "Some of the input was not valid UTF-8 and is replaced by \ufffd."
_READ_BYTES = 1 << 20


class InputText(Struct, frozen=True):
    text: str
    spoiled: bool = False
    """True if invalid bytes were replaced."""


class LineReader:
    """Read from a file descriptor in daemon threads, because a blocking read can't be cancelled."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._ended = False

    async def message(self) -> InputText | None:
        """Return the next line, joined with the following ones while they end in a backslash; `None` at the end."""
        first = await self._line()
        if first is None:
            return None
        parts, chars, spoiled = [first.text], len(first.text), first.spoiled
        while parts[-1].endswith("\\"):
            more = await self._line()
            if more is None:
                break
            spoiled |= more.spoiled
            if chars <= TEXT_CHARS_MAX:
                parts[-1] = parts[-1][:-1]
                parts.append(more.text)
                chars += len(more.text)
            elif not more.text.endswith("\\"):
                break
        return InputText("\n".join(parts), spoiled)

    async def rest(self) -> InputText:
        """Return the remaining input as one text."""
        whole = bytearray()
        while chunk := await self._read():
            whole += chunk[: LINE_BYTES_MAX - len(whole)]
        return _decode(whole)

    async def _line(self) -> InputText | None:
        line = bytearray()
        while True:
            piece, newline, rest = self._rest.partition(b"\n")
            line += piece[: LINE_BYTES_MAX - len(line)]
            self._rest = rest
            if newline:
                return _decode(line)
            if not (chunk := await self._read()):
                return _decode(line) if line else None
            self._rest = chunk

    async def _read(self) -> bytes:
        if self._ended:
            return b""
        try:
            chunk: bytes = await in_daemon_thread(lambda: os.read(self._descriptor, _READ_BYTES), "stdin")
        except OSError:
            # The terminal was closed, or the descriptor was never open.
            chunk = b""
        self._ended = not chunk
        return chunk


def _decode(line: bytearray) -> InputText:
    if line.endswith(b"\r"):
        del line[-1:]
    try:
        return InputText(line.decode())
    except UnicodeDecodeError:
        return InputText(line.decode(errors="replace"), spoiled=True)
