"""An emulated Telegram for tests, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

TOKEN = "42:a-secret-that-must-never-be-seen"


class EmulatorProcess:
    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everthread.testing.telegram", "--port", "0", "--token", TOKEN, *options],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.base_url = str(json.loads(self._process.stdout.readline())["base_url"])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
