"""Making words of what somebody has spoken."""

from __future__ import annotations

from typing import Protocol


class Transcriber(Protocol):
    async def transcribe(self, audio: bytes, name: str, mime: str) -> str:
        """What is said in it; empty if nothing is. Raises `ModelError`."""
        ...

    async def aclose(self) -> None: ...
