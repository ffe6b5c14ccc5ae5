"""Requests to OpenViking: users, sessions and stored messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.scripted import ScriptedService

from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.openviking.client import MESSAGES_MAX, OpenVikingClient
from everthread.adapters.memory.openviking.codec import SessionMessage
from everthread.domain.errors import Unavailable

API = "/api/v1"


@asynccontextmanager
async def client_of(service: ScriptedService, mode: str = "trusted") -> AsyncIterator[OpenVikingClient]:
    service.script("GET /health", {"auth_mode": mode})
    client = OpenVikingClient("openviking", JsonHttpClient("openviking", service.address), "everthread")
    try:
        yield client
    finally:
        await client.aclose()


def result(value: Any) -> dict[str, Any]:
    return {"result": value}


async def test_a_server_with_a_single_user_is_refused_before_anything_is_stored() -> None:
    with ScriptedService() as service:
        async with client_of(service, "api_key") as client:
            with pytest.raises(Unavailable, match="does not keep users apart"):
                await client.append("ann", "s1", [SessionMessage("user", "secret")])
        assert service.calls == ["GET /health"]


async def test_the_server_is_checked_once() -> None:
    with ScriptedService() as service:
        service.script(f"GET {API}/sessions", result([{"session_id": "s1"}]))
        async with client_of(service) as client:
            assert await client.sessions("ann") == await client.sessions("bob") == ["s1"]
        assert service.calls.count("GET /health") == 1


async def test_missing_resources_are_empty_results() -> None:
    with ScriptedService() as service:
        async with client_of(service) as client:
            assert await client.session("ann", "s1") is None
            assert await client.task_status("ann", "t1") == ""
            assert await client.list_folder("ann", "viking://x") == []
            assert await client.read("ann", "viking://x") is None
            assert await client.tags("ann", "viking://x") is None
            assert await client.grep("ann", "viking://x", "bees") == []
            assert await client.search("ann", "bees", 3) == []
            await client.delete_session("ann", "s1")


async def test_many_messages_are_appended_in_batches() -> None:
    with ScriptedService() as service:
        service.script(f"POST {API}/sessions/s1/messages/batch", result(None))
        async with client_of(service) as client:
            await client.append("ann", "s1", [SessionMessage("user", str(n)) for n in range(MESSAGES_MAX + 1)])
        sizes = [len(one.body["messages"]) for one in service.requests if one.method == "POST"]
        assert sizes == [MESSAGES_MAX, 1]


async def test_stored_messages_are_parsed_and_a_damaged_file_is_reported() -> None:
    line = '{"role": "user", "parts": [{"text": "one\\u2028line"}]}'
    with ScriptedService() as service:
        service.script(f"GET {API}/content/read", result(f"{line}\n\n"), result(f"{line}\nnot JSON"))
        async with client_of(service) as client:
            assert [message.text for message in await client.messages("ann", "f")] == ["one\u2028line"]
            with pytest.raises(Unavailable, match="a stored message can't be read"):
                await client.messages("ann", "f")
