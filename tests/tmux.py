"""A tmux window: a terminal that re-wraps its lines when its width changes. `tests.terminal_screen` does not."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

PATIENCE_S = 15.0
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """Run a command in its own tmux server, which ends with it."""

    def __init__(self, folder: Path, command: Sequence[str], *, columns: int, rows: int) -> None:
        self._socket = folder / "tmux"
        self._do("new-session", "-d", "-x", str(columns), "-y", str(rows), shlex.join(command))
        self._do("set-option", "-g", "window-size", "manual")
        self.resize(columns, rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The server may have ended with the command.
        self._do("kill-server", check=False)

    def type(self, text: str) -> None:
        self._do("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(rows))

    def scrolled(self) -> str:
        """Scrollback and screen, without trailing empty lines."""
        return "\n".join(line.rstrip() for line in self._do("capture-pane", "-p", "-S", "-1000").split("\n")).rstrip()

    def expect(self, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, shown := self.scrolled()):
            assert time.monotonic() < deadline, f"{pattern!r} never came:\n{shown}"
            time.sleep(0.05)
        return shown

    def _do(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout
