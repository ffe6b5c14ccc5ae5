"""The real Hermes Agent in its own environment, and a user who types into its terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

from tests.servers.environments import ROOT, environment

from everthread.cli.commands.setup.hermes_env import LOCK

CACHE = ROOT / "hermes"
PROGRAM = CACHE / "bin" / "hermes"
CONFIG = """\
model:
  default: stub
  provider: custom
  base_url: {base_url}
  api_key: sk-test
  context_length: 128000
compression:
  protect_first_n: 1
  protect_last_n: 2
  target_ratio: 0.1
  in_place: {in_place}
"""


def installed() -> Path:
    """Path of the program. The first caller installs it."""
    environment(CACHE.name, LOCK)
    return PROGRAM


class HermesTerminal:
    """A conversation with Hermes on a real terminal."""

    def __init__(self, home: Path, base_url: str, *, in_place: bool = True) -> None:
        home.mkdir(parents=True)
        (home / "config.yaml").write_text(CONFIG.format(base_url=base_url, in_place=str(in_place).lower()))
        self._seen = b""
        program = str(installed())
        environment = {
            "HERMES_HOME": str(home),
            "HOME": str(home),
            "PATH": f"{PROGRAM.parent}:/usr/bin:/bin",
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            [program, "chat", "--cli"],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
        os.close(inside)

    def __enter__(self) -> HermesTerminal:
        self.wait("❯", 90)
        # Hermes drops input that arrives before its prompt is ready.
        self._read(3)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def ask(self, words: str) -> None:
        """Send a message and wait until the stub model quotes it."""
        self.type(words)
        self.wait(f"You said: {words}", 60)
        self._read(1)

    def type(self, words: str) -> None:
        self._seen = b""
        os.write(self._terminal, words.encode())
        self._read(0.3)
        os.write(self._terminal, b"\r")

    def wait(self, pattern: str, bound_s: float) -> None:
        end = time.monotonic() + bound_s
        while not re.search(pattern.encode(), self._seen):
            assert time.monotonic() < end, f"no {pattern!r} in: {self._seen[-2000:].decode(errors='replace')}"
            self._read(0.2)

    def leave(self) -> None:
        self.type("/quit")
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self._read(0.2)
            if self._process.poll() is not None:
                return
        raise AssertionError("Hermes does not leave")

    def _read(self, for_s: float) -> None:
        end = time.monotonic() + for_s
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._terminal], [], [], left)
            if ready:
                try:
                    self._seen += os.read(self._terminal, 65536)
                except OSError:
                    # The process has exited, and there is no more output.
                    return
