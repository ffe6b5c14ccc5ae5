"""JSON responses and event streams: their format, and the release of what a stream holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from everthread.web.responses import EventStream, encode_event, encode_named_event, json_response


class Stream:
    """Two events, and a record of what was sent and released."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = self.ended = 0
        self.response = EventStream(self._events(), {"X-Turn-Id": "t1"}, self._end)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            yield encode_event({"n": 1})
            yield encode_event({"n": 2})
        finally:
            self.closed += 1

    async def _end(self) -> None:
        self.ended += 1

    async def serve(self, *, breaks: bool = False) -> None:
        async def receive() -> Message:
            raise AssertionError("a stream reads nothing")

        async def send(message: Any) -> None:
            if breaks and message.get("body"):
                raise ConnectionResetError
            self.sent += message.get("body", b"")

        await self.response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)


def test_events_are_encoded_in_the_format_of_the_standard() -> None:
    assert encode_event({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    assert encode_named_event("turn", "b1-l2", {}) == b"event: turn\nid: b1-l2\ndata: {}\n\n"


def test_a_json_response_has_its_status_and_headers() -> None:
    response = json_response({"a": 1}, 201, {"X-Session-Id": "s1"})
    assert (response.status_code, response.body) == (201, b'{"a":1}')
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-session-id"] == "s1"


async def test_a_stream_is_sent_whole_without_caching_and_released_once() -> None:
    stream = Stream()
    await stream.serve()
    assert stream.sent == b'data: {"n":1}\n\ndata: {"n":2}\n\n'
    assert stream.response.headers["cache-control"] == "no-store"
    assert (stream.closed, stream.ended) == (1, 1)


async def test_a_stream_is_released_if_the_client_disconnects() -> None:
    stream = Stream()
    with pytest.raises(ClientDisconnect):
        await stream.serve(breaks=True)
    assert (stream.closed, stream.ended) == (1, 1)


async def test_a_head_request_gets_the_headers_and_releases_the_stream() -> None:
    stream = Stream()
    response = await stream.response.without_body()
    assert response.body == b""
    assert response.headers["x-turn-id"] == "t1"
    assert response.headers["content-type"].startswith("text/event-stream")
    assert stream.ended == 1
