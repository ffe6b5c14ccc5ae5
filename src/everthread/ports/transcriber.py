"""Speech to text. Test a transcriber with `everthread.testing.contracts.transcriber`."""

from __future__ import annotations

from typing import Protocol


class Transcriber(Protocol):
    """Transcribes audio attachments."""

    async def transcribe(self, audio: bytes, name: str, mime: str) -> str:
        """Return the spoken text; empty if there is none. Raises `ModelError`."""
        ...

    async def aclose(self) -> None: ...
