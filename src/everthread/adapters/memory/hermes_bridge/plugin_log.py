"""Log file of a plugin's output, of bounded size."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

BYTES_MAX = 500_000
"""Size at which the file is rotated. One old file is kept."""
_CHUNK = 65536


class PluginLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Write the output until its end. A full disk must not block the plugin, so write errors are ignored."""
        while chunk := await stream.read(_CHUNK):
            try:
                self._write(chunk)
            except OSError:
                continue

    def _write(self, chunk: bytes) -> None:
        # Owner-only mode: the output may contain conversations.
        number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(number).st_size
            os.write(number, chunk)
        finally:
            os.close(number)
        if size + len(chunk) > BYTES_MAX:
            self._path.replace(self._path.with_suffix(".log.1"))
