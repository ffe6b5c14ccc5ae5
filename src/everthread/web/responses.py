"""JSON responses and streams of server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

CHECK_S = 0.25
"""Check at most this often that a stream may go on."""
DONE = b"data: [DONE]\n\n"


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def encode_event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def encode_named_event(name: str, event_id: str, value: object) -> bytes:
    return f"event: {name}\nid: {event_id}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"


class EventStream(StreamingResponse):
    """Streams a generator. `ended` is always awaited, also if the client disconnects before the first byte."""

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        ended: Callable[[], Awaitable[None]] | None = None,
        media_type: str = "text/event-stream",
    ) -> None:
        no_cache = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, 200, {**no_cache, **(headers or {})}, media_type)
        self._content = content
        self._checked: AsyncGenerator[bytes, None] | None = None
        self._ended = ended
        self._release: Callable[[], None] | None = None

    def release_at_end(self, release: Callable[[], None]) -> None:
        """Call `release` when the stream has ended."""
        self._release = release

    def end_unless(self, may_stay: Callable[[], Awaitable[bool]]) -> None:
        """Check before a piece is sent that the client may still read the stream, and end it otherwise."""
        self._checked = self.body_iterator = _checked(self._content, may_stay)

    async def without_body(self) -> Response:
        """Return the response to a HEAD request."""
        await self._end()
        response = Response(None, self.status_code, media_type=self.media_type)
        response.raw_headers = self.raw_headers
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            if self._checked is not None:
                await self._checked.aclose()
            await self._content.aclose()
            if self._ended is not None:
                await self._ended()
        finally:
            if self._release is not None:
                self._release()


async def _checked(
    content: AsyncGenerator[bytes, None], may_stay: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes, None]:
    checked_at = time.monotonic()
    async for piece in content:
        if time.monotonic() - checked_at >= CHECK_S:
            if not await may_stay():
                return
            checked_at = time.monotonic()
        yield piece
