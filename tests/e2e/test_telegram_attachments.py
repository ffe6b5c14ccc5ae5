"""Attachments on Telegram: fetched after their message is stored, without delaying other users."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until
from tests.telegram_gateway import ANN, BOB, TOKEN, telegram_gateway
from tests.transcription import VOICE, TranscriptionServer

from everthread.config.schema import GatewaySettings, ProviderSettings
from everthread.domain.model import ToolCall
from everthread.lifecycle import ForgetOwner, ForgetSession
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.server import TelegramEmulator

NOTE = wire.AttachedFile("document", b"milk and bread", "list.txt", "text/plain")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model() -> ModelServer:
    def script(request: Any) -> Say:
        return Say(f"You said: {[str(one.content) for one in request.messages if one.role == 'user'][-1]}")

    return ModelServer(script)


def hearing(ears: TranscriptionServer, **more: Any) -> dict[str, Any]:
    endpoints = {"ears": ProviderSettings("openai_compat", ears.base_url)}
    return {"endpoints": endpoints, "gateway": GatewaySettings(transcription_model="ears/whisper-1", **more)}


def kept(home: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in (home / "media").rglob("*") if path.is_file())


async def test_a_slow_voice_message_is_acknowledged_at_once_and_delays_nobody_else(tmp_path: Path) -> None:
    async with (
        TranscriptionServer() as ears,
        model() as server,
        telegram_gateway(tmp_path, server, **hearing(ears)) as fixture,
    ):
        ears.open.clear()
        await fixture.people.say(ANN, "", file=VOICE)
        await fixture.people.say(ANN, "and eggs")
        await until(lambda: ears.asked, "it is being heard")
        await until(lambda: not fixture.emulator.state.updates.pending, "both are acknowledged")
        await fixture.people.say(BOB, "hello")
        await fixture.people.until(lambda: fixture.people.texts(BOB) == ["You said: hello"], "another chat is answered")
        assert fixture.people.texts(ANN) == []
        ears.open.set()
        wanted = ["You said: [spoken] buy milk", "You said: and eggs"]
        await fixture.people.until(lambda: fixture.people.texts(ANN) == wanted, "both, in their order")


async def test_fetches_interrupted_by_a_stop_are_resumed_by_the_next_gateway(tmp_path: Path) -> None:
    async with TranscriptionServer() as ears, model() as server, TelegramEmulator(TOKEN, limits=False) as emulator:
        ears.open.clear()
        async with telegram_gateway(tmp_path, server, emulator, drain_s=30.0, **hearing(ears)) as fixture:
            began = asyncio.get_running_loop().time()
            await fixture.people.say(ANN, "", file=VOICE)
            await fixture.people.say(ANN, "the list", file=NOTE)
            await until(lambda: ears.asked, "it is being heard")
            await until(lambda: not emulator.state.updates.pending, "acknowledged")
        assert asyncio.get_running_loop().time() - began < 10.0, "stopping waited for the transcription"
        ears.open.set()
        async with telegram_gateway(tmp_path, server, emulator, **hearing(ears)) as fixture:
            await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 2, "both")
            spoken, listed = fixture.people.texts(ANN)
            assert spoken == "You said: [spoken] buy milk"
            assert listed.startswith("You said: the list\n[file: list.txt, text/plain")
            assert listed.endswith("\nmilk and bread")
            await fixture.rest()
            assert len(await fixture.turns((await fixture.session()).id)) == 2
        assert kept(tmp_path) == [NOTE.content]


async def test_a_voice_message_during_a_tool_call_steers_the_turn_in_order(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def think(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await may_end.wait()
        return "thought"

    def script(request: Any) -> Say:
        calls = () if any(one.role == "tool" for one in request.messages) else (ToolCall("c1", "think", "{}"),)
        return Say("" if calls else "Done.", calls)

    tools = (Tool(ToolSchema("think", "Think.", {"type": "object", "properties": {}}), think),)
    async with TranscriptionServer() as ears, ModelServer(script) as server:
        async with telegram_gateway(tmp_path, server, tools=tools, **hearing(ears, busy="steer")) as fixture:
            ears.open.clear()
            await fixture.people.say(ANN, "begin")
            await until(lambda: fixture.gateway.worker.running, "a turn runs")
            await fixture.people.say(ANN, "", file=VOICE)
            await fixture.people.say(ANN, "and eggs")
            await until(lambda: ears.asked, "it is being heard")
            await until(lambda: fixture.gateway.inbound.accepted == 3, "all were taken")
            ears.open.set()
            await asyncio.sleep(0.5)
            may_end.set()
            await fixture.people.until(lambda: fixture.people.texts(ANN) == ["Done."], "an answer")
            turns = await fixture.turns((await fixture.session()).id)
            said = [[one.content for one in turn.messages if one.role == "user"] for turn in turns]
            assert said == [["begin", "[spoken] buy milk", "and eggs"]]


async def test_an_attachment_set_aside_by_a_new_session_is_not_stored(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.hear("hello")
        first = await fixture.session()
        await fixture.people.fault(wire.Fault("delay", "getFile", seconds=1.0))
        await fixture.people.say(ANN, "the list", file=NOTE)
        await until(lambda: fixture.emulator.calls["getFile"], "it is being fetched")
        await fixture.people.say(ANN, "/new")
        await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 2, "a new session")
        await asyncio.sleep(1.5)
        aside = (await fixture.turns(first.id))[-1]
        assert aside.messages[0].content.startswith("the list\n[file: list.txt")
        assert kept(tmp_path) == []


# --- Forgetting ------------------------------------------------------------------------------------------------------


async def test_forgetting_a_session_or_a_person_removes_their_files(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        for number, user in enumerate((ANN, ANN, BOB)):
            said = wire.AttachedFile("document", f"list {number}".encode(), "list.txt", "text/plain")
            if number == 1:
                await fixture.hear("/new")
            before = len(fixture.people.texts(user))
            await fixture.people.say(user, "look", file=said)
            await fixture.people.until(lambda: len(fixture.people.texts(user)) > before, "an answer")  # noqa: B023
            await fixture.rest()
            if number == 0:
                first = await fixture.session()
        assert kept(tmp_path) == [b"list 0", b"list 1", b"list 2"]
        lifecycle = fixture.runtime.lifecycle
        await lifecycle.forget(ForgetSession(first.id), owner=first.owner)
        assert kept(tmp_path) == [b"list 1", b"list 2"]
        await lifecycle.forget(ForgetOwner(), owner=first.owner)
        assert kept(tmp_path) == [b"list 2"], "files of another owner were removed"
        assert await fixture.runtime.store.read(lambda uow: uow.attachments.discarded()) == ()


async def test_a_file_that_cannot_be_removed_is_reported_and_removed_at_the_next_start(tmp_path: Path) -> None:
    async with model() as server, TelegramEmulator(TOKEN, limits=False) as emulator:
        async with telegram_gateway(tmp_path, server, emulator) as fixture:
            await fixture.people.say(ANN, "look", file=NOTE)
            await fixture.people.until(lambda: fixture.people.texts(ANN), "an answer")
            await fixture.rest()
            session, (file,) = await fixture.session(), tuple((tmp_path / "media" / "telegram").iterdir())
            file.unlink()
            file.mkdir()
            await fixture.runtime.lifecycle.forget(ForgetSession(session.id), owner=session.owner)
            (incident,) = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(10))
            assert incident.text.endswith(f"remove media/telegram/{file.name}")
            file.rmdir()
            file.write_bytes(b"milk")
        async with telegram_gateway(tmp_path, server, emulator):
            assert kept(tmp_path) == []


async def test_an_attachment_forgotten_during_its_fetch_is_not_stored(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.hear("hello")
        owner = (await fixture.session()).owner
        await fixture.people.fault(wire.Fault("delay", "getFile", seconds=1.0))
        await fixture.people.say(ANN, "the list", file=NOTE)
        await until(lambda: fixture.emulator.calls["getFile"], "it is being fetched")
        await fixture.runtime.lifecycle.forget(ForgetOwner(), owner=owner)
        await asyncio.sleep(1.5)
        assert kept(tmp_path) == []
