"""Terminal for tests: a real process on a pseudo-terminal, and the screen drawn from its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyte
from pyte.screens import Char

PATIENCE_S = 15.0
ENTER, TAB, ESCAPE, UP, DOWN = "\r", "\t", "\x1b", "\x1b[A", "\x1b[B"
CTRL_C, CTRL_D = "\x03", "\x04"
_SHOWN = b"\x1b[?2026l"
ALT_ENTER = "\x1b\r"

# The process needs a controlling terminal to receive changes of its size.
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class TerminalScreen:
    """Run a command. Its output is drawn on a screen of the given size, with scrollback."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 100, rows: int = 30, term: str = "xterm"
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        self._set_size(columns, rows)
        self.raw = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**env, "TERM": term},
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def type(self, text: str) -> None:
        data = text.encode()
        while data:
            # Read while writing: with much input, both sides would otherwise block.
            _, writable, _ = select.select([], [self._master], [], 0.05)
            if writable:
                data = data[os.write(self._master, data[:512]) :]
            self._read(0.0)

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        """Resize as xterm does: lines are cut, first those at the bottom; the cursor stays in its line."""
        below = self._screen.cursor.y - (rows - 1)
        if below > 0:
            at = self._screen.cursor.y
            self._screen.cursor.y = self._screen.lines - 1
            for _ in range(below):
                self._screen.index()
            self._screen.cursor.y = at - below
        for row in range(rows, self._screen.lines):
            self._screen.buffer.pop(row, None)
        # Otherwise pyte would remove lines at the top.
        self._screen.lines = rows
        self._screen.resize(rows, columns)
        self._set_size(columns, rows)

    def hang_up(self) -> None:
        """Close the terminal, as if its window were closed."""
        os.close(self._master)
        self._master = -1

    def rows(self) -> list[str]:
        """Rows of the screen, without trailing empty ones."""
        rows = [row.rstrip() for row in self._screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def shown(self) -> str:
        return "\n".join(self.rows())

    def pictures(self) -> list[str]:
        """All screens since the start, one per update that the program completed."""
        screen = pyte.Screen(self._screen.columns, self._screen.lines)
        stream = pyte.ByteStream(screen)
        pictures: list[str] = []
        *changes, _ = bytes(self.raw).split(_SHOWN)
        for change in changes:
            stream.feed(change)
            pictures.append("\n".join(screen.display))
        return pictures

    def scrolled(self) -> str:
        """Scrollback and screen."""
        above = [
            "".join(line[column].data for column in range(self._screen.columns)).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*above, *self.rows()])

    def colours(self) -> set[str]:
        """Colours on the screen."""
        return {cell.fg for line in self._screen.buffer.values() for cell in line.values() if cell.data.strip()}

    def cells(self) -> list[list[Char]]:
        """Rows of cells with their attributes."""
        lines = [self._screen.buffer[row] for row in range(self._screen.lines)]
        return [[line[column] for column in range(self._screen.columns)] for line in lines]

    def cursor(self) -> tuple[int, int]:
        """Column and row of the cursor."""
        return self._screen.cursor.x, self._screen.cursor.y

    def expect(self, pattern: str, *, gone: bool = False) -> str:
        """Wait until the screen shows the pattern, or no longer shows it. Return the screen."""
        self.until(lambda: (re.search(pattern, self.shown()) is None) == gone, f"{'no ' if gone else ''}{pattern!r}")
        return self.shown()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} never came:\n{self.shown()}"
            assert self._read(0.05) or condition(), f"ended without {what}:\n{self.shown()}"

    def settle(self, seconds: float = 0.3) -> str:
        """Return the screen once it has not changed for a while."""
        quiet_since = time.monotonic()
        deadline = quiet_since + PATIENCE_S
        while time.monotonic() - quiet_since < seconds and time.monotonic() < deadline:
            before = len(self.raw)
            if not self._read(0.05):
                break
            if len(self.raw) != before:
                quiet_since = time.monotonic()
        return self.shown()

    def ended(self) -> int:
        """Wait for the process. Return its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(0.05):
            assert time.monotonic() < deadline, f"it never ended:\n{self.shown()}"
        assert b"Traceback" not in self.raw, self.scrolled()
        return self.process.wait(PATIENCE_S)

    def _read(self, wait_s: float) -> bool:
        """Draw pending output. Return False at its end."""
        ready, _, _ = select.select([self._master], [], [], wait_s)
        if not ready:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError:
            return False
        self.raw += chunk
        self._stream.feed(chunk)
        return bool(chunk)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
