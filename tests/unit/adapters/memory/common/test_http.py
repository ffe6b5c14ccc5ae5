"""Failures of a service as provider errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from everthread.adapters.memory.common.http import JsonHttpClient, ResourceNotFound
from everthread.domain.errors import BadConfig, Rejected, Unavailable


@asynccontextmanager
async def service(status: int, body: str = "{}", **headers: str) -> AsyncGenerator[JsonHttpClient]:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key-1"
        return web.Response(status=status, text=body, headers=headers)

    app = web.Application()
    app.router.add_get("/x", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = JsonHttpClient("diary", f"http://127.0.0.1:{runner.addresses[0][1]}/", key="key-1")
    try:
        yield client
    finally:
        await client.aclose()
        await runner.cleanup()


async def test_a_response_is_decoded() -> None:
    async with service(200, '{"a": 1}') as client:
        assert await client.request("GET", "/x", into=dict[str, int]) == {"a": 1}


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, ResourceNotFound), (401, Unavailable), (429, Unavailable), (503, Unavailable), (302, Unavailable)],
)
async def test_a_failure_that_may_pass_is_retried_by_the_journal(status: int, error: type[Exception]) -> None:
    async with service(status, "words of a conversation", Location="http://elsewhere") as client:
        with pytest.raises(error, match=str(status)) as caught:
            await client.send("GET", "/x")
        assert "words" not in str(caught.value)


async def test_a_request_that_is_wrong_is_rejected_for_good() -> None:
    async with service(422) as client:
        with pytest.raises(Rejected, match="422"):
            await client.send("GET", "/x")


async def test_the_delay_that_a_service_asks_for_is_kept_within_bounds() -> None:
    async with service(429, **{"Retry-After": "9000"}) as client:
        with pytest.raises(Unavailable) as caught:
            await client.send("GET", "/x")
        assert caught.value.retry_after_s == 300


async def test_a_response_of_another_form_is_unavailable() -> None:
    async with service(200, "<html>") as client:
        with pytest.raises(Unavailable, match="can't be read"):
            await client.request("GET", "/x", into=dict[str, int])


@pytest.mark.parametrize("settings", [{"url": "diary.example"}, {"url": "http://x", "key": "two words"}])
def test_an_address_or_key_that_can_not_be_right_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="^diary: "):
        JsonHttpClient("diary", **settings)
