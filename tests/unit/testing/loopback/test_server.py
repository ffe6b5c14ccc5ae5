"""The server of the loopback platform: acknowledgement, deduplication, faults and its state file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everthread.testing.loopback import protocol as wire
from everthread.testing.loopback.server import TEXT_CHARS_MAX, InvalidCall, LoopbackServer, PlatformState


async def post(server: LoopbackServer, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.post(server.base_url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


def send(text: str = "hello", id: str = "1") -> wire.Send:
    return wire.Send(id, "7", text)


async def test_an_update_is_delivered_until_a_higher_offset_acknowledges_it() -> None:
    async with LoopbackServer(PlatformState()) as server:
        server.state.say(wire.UserMessage("7", "u", "one"))
        server.state.say(wire.UserMessage("7", "u", "two"))
        for _ in range(2):
            assert [one["said"]["text"] for one in (await post(server, "/poll", {}))[1]] == ["one", "two"]
        assert [one["said"]["text"] for one in (await post(server, "/poll", {"offset": 1}))[1]] == ["two"]
        assert (await post(server, "/poll", {"offset": 2}))[1] == []


def test_a_message_sent_twice_under_one_id_is_shown_once_unless_repeats_are_on() -> None:
    for repeats, count in ((False, 1), (True, 2)):
        state = PlatformState(repeats=repeats)
        assert state.send(send()) == "msg-0"
        state.send(send())
        assert len(state.seen) == count


def test_invalid_texts_and_edits_are_refused() -> None:
    state = PlatformState()
    message_id = state.send(send())
    for text in ("", " ", "x" * (TEXT_CHARS_MAX + 1)):
        with pytest.raises(InvalidCall):
            state.send(send(text, "2"))
    with pytest.raises(InvalidCall):
        state.edit(wire.Edit("8", message_id, "in another chat"))
    state.edit(wire.Edit("7", message_id, "edited"))
    assert [one.text for one in state.seen] == ["hello", "edited"]


async def test_faults_apply_to_their_calls_and_end() -> None:
    body = {"id": "1", "chat": "7", "text": "hello"}
    async with LoopbackServer(PlatformState()) as server:
        await post(server, "/admin/fault", {"kind": "busy", "call": "send", "times": 1, "chat": "7"})
        assert (await post(server, "/typing", {"chat": "7"}))[0] == 200
        assert (await post(server, "/send", body | {"chat": "8"}))[0] == 200
        assert (await post(server, "/send", body))[0] == 429
        assert (await post(server, "/send", body | {"id": "2"}))[0] == 200
        await post(server, "/admin/fault", {"kind": "drop_after", "call": "send"})
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post(server, "/send", body | {"id": "3", "text": "shown"})
        assert server.state.seen[-1].text == "shown"
        assert (await post(server, "/unknown", {}))[0] == 400


def test_the_state_is_restored_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with path.open("a+b") as file:
        state = PlatformState(file)
        state.say(wire.UserMessage("7", "u", "one"))
        state.say(wire.UserMessage("7", "u", "two"))
        state.acknowledge(1)
        state.send(send())
    restored = PlatformState()
    restored.read(path.read_bytes().splitlines())
    assert (restored.seen, restored.queue, restored.acknowledged) == (state.seen, state.queue, 1)
    assert restored.send(send()) == "msg-0"
