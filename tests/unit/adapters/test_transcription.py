"""Speech to text at an OpenAI-compatible endpoint keeps the contract."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from everthread.adapters.transcription import OpenAICompatTranscriber
from everthread.domain.errors import ModelUnavailable
from everthread.ports.transcriber import Transcriber
from everthread.testing import in_loop
from everthread.testing.contracts.transcriber import TranscriberContract, TranscriptionEndpoint


class Endpoint:
    """Endpoint with a configured answer."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (200, b"{}")
        self.let_go = threading.Event()
        self.let_go.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(
                    int(self.headers.get("Content-Length") or 0)
                ) if "Content-Length" in self.headers else None
                endpoint.let_go.wait(5.0)
                status, body = endpoint.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def says(self, text: str) -> None:
        self.answer = (200, json.dumps({"text": text}).encode())

    def fails(self, status: int) -> None:
        self.answer = (status, b"{}")

    def stalls(self) -> None:
        self.let_go.clear()

    def end(self) -> None:
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class TestOpenAICompat(TranscriberContract):
    @pytest.fixture
    def endpoint(self) -> Iterator[TranscriptionEndpoint]:
        endpoint = Endpoint()
        yield endpoint
        endpoint.end()

    @pytest.fixture
    def transcriber(self, endpoint: Endpoint) -> Transcriber:
        return OpenAICompatTranscriber(endpoint.base_url, "whisper-1", "a-key")


@in_loop
async def test_an_unreachable_endpoint_and_an_unreadable_response_are_reported_without_the_key() -> None:
    ears = OpenAICompatTranscriber("http://127.0.0.1:1/v1", "whisper-1", "a-key")
    with pytest.raises(ModelUnavailable) as failure:
        await ears.transcribe(b"x", "x.ogg", "")
    assert "a-key" not in str(failure.value)
    await ears.aclose()
