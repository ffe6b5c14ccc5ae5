"""Contract of transcribers. Subclass `TranscriberContract` and define two fixtures:

`transcriber` is a fresh transcriber; `endpoint` controls its endpoint, as defined by `TranscriptionEndpoint`.
Run by tests/unit/adapters/test_transcription.py.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from everthread.domain.errors import ModelError, ModelUnavailable
from everthread.ports.transcriber import Transcriber
from everthread.testing import in_loop


class TranscriptionEndpoint(Protocol):
    """Control of the endpoint. Each method applies to the next call."""

    def says(self, text: str) -> None: ...
    def fails(self, status: int) -> None: ...
    def stalls(self) -> None: ...


class TranscriberContract:
    @in_loop
    async def test_speech_is_transcribed(self, transcriber: Transcriber, endpoint: TranscriptionEndpoint) -> None:
        endpoint.says("  buy milk\n")
        assert await transcriber.transcribe(b"OggS", "voice.ogg", "audio/ogg") == "buy milk"
        endpoint.says("")
        assert await transcriber.transcribe(b"OggS", "voice.ogg", "audio/ogg") == ""
        await transcriber.aclose()

    @in_loop
    async def test_temporary_errors_are_unavailable_and_others_are_refused(
        self, transcriber: Transcriber, endpoint: TranscriptionEndpoint
    ) -> None:
        for status in (500, 503, 429):
            endpoint.fails(status)
            with pytest.raises(ModelUnavailable):
                await transcriber.transcribe(b"OggS", "voice.ogg", "audio/ogg")
        for status in (400, 401, 404):
            endpoint.fails(status)
            with pytest.raises(ModelError) as failure:
                await transcriber.transcribe(b"OggS", "voice.ogg", "audio/ogg")
            assert not isinstance(failure.value, ModelUnavailable)
        await transcriber.aclose()

    @in_loop
    async def test_it_can_be_cancelled_and_closed_at_any_time(
        self, transcriber: Transcriber, endpoint: TranscriptionEndpoint
    ) -> None:
        await transcriber.aclose()
        endpoint.stalls()
        transcribing = asyncio.ensure_future(transcriber.transcribe(b"OggS", "voice.ogg", "audio/ogg"))
        await asyncio.sleep(0.1)
        transcribing.cancel()
        await asyncio.wait({transcribing}, timeout=2.0)
        assert transcribing.cancelled()
        await transcriber.aclose()
        await transcriber.aclose()
