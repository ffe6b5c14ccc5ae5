"""The event stream: every event once, from any position."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway

from everthread.testing.model_server.server import ModelServer


async def event(stream: Any) -> dict[str, Any]:
    """Return the next event, skipping keep-alive comments."""
    async with asyncio.timeout(5):
        while True:
            found: dict[str, Any] = {}
            while (line := (await stream.content.readline()).decode().rstrip("\n")) != "":
                name, _, value = line.partition(": ")
                found[name] = value
            if "data" in found:
                return found | {"data": msgspec.json.decode(found["data"])}
            assert found, "the stream has ended"


async def test_revoking_a_token_ends_its_event_streams(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        listen = [
            fixture.http.get(fixture.url + "/api/events", headers={"Authorization": f"Bearer {token}"})
            for token in (anna, ben)
        ]
        async with listen[0] as hers, listen[1] as his:
            for stream in (hers, his):
                await stream.content.readuntil(b"\n\n")
            await fixture.runtime.store.write(lambda uow: uow.api_keys.remove("anna", "test"))
            async with asyncio.timeout(3):
                assert await hers.content.read() == b""
            await fixture.say("hello", ben, X_Session_Key="desk")
            async with asyncio.timeout(3):
                assert b"event: boundary" in await his.content.readuntil(b"\n\n")


async def test_an_expired_token_ends_its_event_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.web.events.HEARTBEAT_S", 0.0)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("anna", expires_at=fixture.clock.now() + 3600)
        headers = {"Authorization": f"Bearer {token}"}
        async with fixture.http.get(fixture.url + "/api/events", headers=headers) as stream:
            await stream.content.readuntil(b"\n\n")
            fixture.clock.advance(3601)
            async with asyncio.timeout(5):
                await stream.content.read()


async def test_lists_and_events_show_only_own_sessions(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        theirs = await fixture.converse("my secret", token=anna)
        assert (await fixture.ask("GET", "/api/sessions", token=ben)).json == {"data": [], "next_cursor": None}
        assert [one["id"] for one in (await fixture.ask("GET", "/api/sessions", token=anna)).json["data"]] == [theirs]
        async with fixture.http.get(
            fixture.url + "/api/events", headers={"Authorization": f"Bearer {ben}", "Last-Event-ID": "b0-l0"}
        ) as stream:
            assert (await event(stream))["event"] == "listening"
            mine = await fixture.converse("hello", token=ben)
            assert (await event(stream))["data"]["to"] == mine
            assert (await event(stream))["data"]["session"] == mine


async def test_a_stream_resumes_after_the_last_event_without_repeats(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        await fixture.converse("before anybody listens")
        url = fixture.url + "/api/events"
        async with fixture.http.get(url, headers=fixture.auth) as stream:
            assert (await event(stream))["event"] == "listening"
            session_id = await fixture.converse("one")
            first = await event(stream)
            assert (first["event"], first["data"]["session"], first["data"]["turn"]) == ("turn", session_id, 2)
        await fixture.converse("two", "/new", "three")
        async with fixture.http.get(url, headers={**fixture.auth, "Last-Event-ID": first["id"]}) as stream:
            assert (await event(stream))["event"] == "listening"
            seen = [await event(stream) for _ in range(3)]
            assert [one["event"] for one in seen] == ["turn", "boundary", "turn"]
            assert (seen[1]["data"]["kind"], seen[1]["data"]["from"]) == ("new", session_id)
            assert seen[2]["data"]["session"] == seen[1]["data"]["to"]
        for middle, rest in ((seen[0], seen[1:]), (seen[1], seen[2:])):
            async with fixture.http.get(url, headers={**fixture.auth, "Last-Event-ID": middle["id"]}) as stream:
                await event(stream)
                assert [await event(stream) for _ in rest] == rest
        assert (await fixture.ask("GET", "/api/events", Last_Event_ID="nonsense")).status == 400


async def test_old_events_are_read_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.web.events.WINDOW", 2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        await fixture.converse("one", "/new", "two", "/new", "three")
        from_start = {**fixture.auth, "Last-Event-ID": "b0-l0"}
        async with fixture.http.get(fixture.url + "/api/events", headers=from_start) as stream:
            await event(stream)
            seen = [await event(stream) for _ in range(6)]
        assert sorted(one["event"] for one in seen) == ["boundary"] * 3 + ["turn"] * 3
        assert len({one["id"] for one in seen}) == 6


async def test_streams_are_limited_released_and_ended_on_shutdown(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        streams = [await fixture.http.get(fixture.url + "/api/events", headers=fixture.auth) for _ in range(16)]
        assert (await fixture.ask("GET", "/api/events")).status == 429
        streams[0].close()
        again = None
        async with asyncio.timeout(5):
            while again is None or again.status == 429:
                again = await fixture.http.get(fixture.url + "/api/events", headers=fixture.auth)
        stopping = asyncio.ensure_future(fixture.web.stop())
        async with asyncio.timeout(3):
            await stopping
            while await again.content.read(1000):
                pass
