"""What a plugin prints and logs, in a file that does not grow beyond its bound."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

BYTES_MAX = 500_000
"""Of each of two files, the one that is written and the one before it."""
_PIECE = 65536


class PluginLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Keep what comes until it ends. A disk that takes nothing more is no reason to let the plugin wait."""
        while piece := await stream.read(_PIECE):
            try:
                self._keep(piece)
            except OSError:
                continue

    def _keep(self, piece: bytes) -> None:
        # It may have what people said in it.
        number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(number).st_size
            os.write(number, piece)
        finally:
            os.close(number)
        if size + len(piece) > BYTES_MAX:
            self._path.replace(self._path.with_suffix(".log.1"))
