"""Streamed requests to a model endpoint: batches of events, errors and configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

import pytest

from everthread.adapters.models.http import SseEvent, StreamingClient
from everthread.domain.errors import BadConfig, ModelRefused, ModelUnauthorized, ModelUnavailable
from everthread.testing.model_server.replies import Fail, Raw, Reply
from everthread.testing.model_server.server import ModelServer

BODY = (b'{"model":"m","messages":[', b'{"role":"user","content":"hello"}', b"]}")


@asynccontextmanager
async def client_of(
    replies: Iterable[Reply], key: str = "key-1234567890"
) -> AsyncIterator[tuple[StreamingClient, ModelServer]]:
    async with ModelServer(replies) as server:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = StreamingClient(server.base_url, headers, key=key, key_name="THE_KEY", needs_key=True, idle_s=5.0)
        try:
            yield client, server
        finally:
            await client.aclose()


async def events(client: StreamingClient) -> list[SseEvent]:
    async with aclosing(client.events("/chat/completions", BODY, lambda event: event.data == b"end")) as batches:
        return [event async for batch in batches for event in batch]


async def test_events_are_read_up_to_the_last_one() -> None:
    stream = Raw((b"data: one\n\nda", b"ta: two\n\n", b"data: end\n\ndata: more\n\n"))
    async with client_of([stream]) as (client, server):
        found = [event.data for event in await events(client)]
        assert found[:3] == [b"one", b"two", b"end"]
        assert server.requests == [b"".join(BODY)]


async def test_a_response_that_is_no_stream_is_one_event() -> None:
    async with client_of([Raw((b'{"a":', b" 1}"), content_type="application/json")]) as (client, _):
        assert await events(client) == [SseEvent(b"", b'{"a": 1}')]


async def test_nothing_is_sent_without_a_key_that_the_endpoint_needs() -> None:
    async with client_of([], key="") as (client, server):
        with pytest.raises(ModelUnauthorized, match="set THE_KEY"):
            await events(client)
        assert server.connections == 0


async def test_an_error_response_is_translated_and_a_redirect_is_not_followed() -> None:
    redirect = Fail(307, "moved", headers={"Location": "http://127.0.0.1:9/"})
    async with client_of([Fail(503, "busy with key-1234567890"), redirect]) as (client, _):
        with pytest.raises(ModelUnavailable, match=r"busy with \*\*\*"):
            await events(client)
        with pytest.raises(ModelRefused, match="redirects"):
            await events(client)


async def test_an_error_inside_a_stream_has_the_status_of_its_name() -> None:
    async with client_of([]) as (client, _):
        assert type(client.error_in_stream("overloaded")) is ModelUnavailable


@pytest.mark.parametrize("url", ["127.0.0.1:1", "ftp://host", "http://", "http://[::1"])
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadConfig, match="is not the base URL of a model"):
        StreamingClient(url, {}, key="", key_name="THE_KEY")


def test_a_key_with_unprintable_characters_is_refused_by_its_name() -> None:
    with pytest.raises(BadConfig, match="correct THE_KEY"):
        StreamingClient("http://host/v1", {"x-api-key": "a\nb"}, key="a\nb", key_name="THE_KEY")
