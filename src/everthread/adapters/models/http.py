"""Streamed POST requests to a model endpoint; every failure becomes a model error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from everthread.adapters.models.errors import EndpointInfo, ErrorObject, error_message_in, model_error, retry_after_s
from everthread.adapters.models.sse import EventParser, SseEvent, decode_json, merge_deltas
from everthread.domain.errors import BadConfig, ModelError, ModelUnavailable
from everthread.ports.model import Answer, Delta, Request

CONNECT_S_MAX = 10.0
IDLE_S_MAX = 120.0
NO_TEXT = "(no text)"
"""Sent for an empty message, which endpoints reject."""
SECRET_CHARS_MIN = 12

if TYPE_CHECKING:
    from everthread.adapters.models.connection import StreamingPool

T = TypeVar("T")

__all__ = ["CONNECT_S_MAX", "IDLE_S_MAX", "NO_TEXT", "ErrorObject", "SseEvent", "StreamingClient"]


class AnswerReader(Protocol):
    """Collects an answer from the events of its stream."""

    has_begun: bool

    @property
    def has_ended(self) -> bool: ...
    def is_last(self, event: SseEvent) -> bool: ...
    def deltas(self, events: Sequence[SseEvent], http: StreamingClient) -> Iterator[Delta]: ...
    def answer(self, request: Request) -> Answer: ...


class StreamingClient:
    """Client of one endpoint. Connections open with the first request, in the event loop that makes it."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        key: str,
        key_name: str,
        needs_key: bool = False,
        connect_s: float = CONNECT_S_MAX,
        idle_s: float = IDLE_S_MAX,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        # Any header may contain a secret; short words are none.
        secrets = (word for value in headers.values() for word in value.split() if len(word) >= SECRET_CHARS_MIN)
        self._endpoint = EndpointInfo(_host(base_url), key_name, key, tuple(secrets))
        if not all(value.isprintable() for value in headers.values()):
            raise BadConfig(
                f"the key or a header for {self._endpoint.name} has unprintable characters: correct {key_name}"
            )
        self._headers = {
            "User-Agent": "everthread",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # Compression would delay the stream.
            "Accept-Encoding": "identity",
            **headers,
        }
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._lacks_key = needs_key and not key
        self._pool: StreamingPool | None = None

    async def events(
        self, path: str, body: Sequence[bytes], is_last: Callable[[SseEvent], bool]
    ) -> AsyncGenerator[Sequence[SseEvent], None]:
        """Post the body, and yield events up to the last one or the end of the stream, in batches as they arrive.

        A response that is not a stream is yielded as one event. Closing the generator closes the connection.
        """
        if self._lacks_key:
            # Don't send a conversation that would be rejected.
            raise model_error(self._endpoint, 401, "")
        pool = self._open_pool()
        with pool.translate_errors(self.unavailable):
            async with await pool.open_response(path, body) as response:
                if not 200 <= response.status <= 299:
                    error_body = await pool.read_error_body(response)
                    raise model_error(
                        self._endpoint, response.status, error_message_in(error_body), retry_after_s(response.headers)
                    )
                if response.content_type == "application/json":
                    yield [SseEvent(b"", await pool.read_body(response))]
                    return
                parser = EventParser()
                while chunk := await response.content.readany():
                    if events := parser.feed(chunk):
                        yield events
                        if any(map(is_last, events)):
                            await pool.drain(response)
                            return
                yield parser.end()

    async def answer(
        self, path: str, body: Sequence[bytes], reader: AnswerReader, request: Request
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Post the body, and yield the deltas that the reader finds in the stream, then its answer."""
        try:
            async with aclosing(self.events(path, body, reader.is_last)) as events:
                async for batch in events:
                    for delta in merge_deltas(reader.deltas(batch, self)):
                        yield delta
        except ModelUnavailable:
            # A failure after the end of the answer loses only the usage.
            if not reader.has_ended:
                raise
        if not reader.has_ended:
            raise self.unavailable("ended in the middle of its answer" if reader.has_begun else "sent an empty answer")
        yield reader.answer(request)

    def decode_json(self, event: SseEvent, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decode_json(event.data, decoder)
        except (ValueError, RecursionError) as error:
            raise self.unavailable(f"sent data that can't be read ({type(error).__name__})") from None

    def unavailable(self, what: str) -> ModelUnavailable:
        """Make an error about the endpoint."""
        return ModelUnavailable(f"{self._endpoint.name} {what}")

    def error_in_stream(self, error: ErrorObject | str) -> ModelError:
        """Translate an error that was sent inside a stream."""
        if isinstance(error, str):
            return model_error(self._endpoint, 500, error)
        return model_error(self._endpoint, error.status, error.text)

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    def _open_pool(self) -> StreamingPool:
        if self._pool is None:
            from everthread.adapters.models.connection import StreamingPool  # noqa: PLC0415 - aiohttp: slow to import

            self._pool = StreamingPool(self._base_url, self._headers, self._connect_s, self._idle_s)
        return self._pool


def _host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfig(f"{base_url[:100]!r} is not the base URL of a model; expected https://HOST/PATH")
    return parts.hostname + port
