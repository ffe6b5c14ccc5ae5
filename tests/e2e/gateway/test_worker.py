"""The lanes of session keys: messages and commands run in order, even after failures."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.domain.boundary import Resume
from everthread.domain.errors import BadConfig
from everthread.domain.model import (
    Inbound,
    Message,
    Role,
    SessionKey,
    ToolCall,
    TurnStatus,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.gateway import server as serving
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer


class Gate:
    """Block the next `begin_turn`, before or after it stores the turn."""

    def __init__(self, fixture: GatewayFixture, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
        self.there_is_one, self.goes = asyncio.Event(), asyncio.Event()
        begin = fixture.gateway.lifecycle.begin_turn

        async def held_up(key: SessionKey) -> Any:
            ticket = await begin(key) if after else None
            self.there_is_one.set()
            await self.goes.wait()
            return ticket if after else await begin(key)

        monkeypatch.setattr(fixture.gateway.lifecycle, "begin_turn", held_up)


CLI = SessionKey.parse("agent:main:cli:dm:desk")


@pytest.mark.parametrize("after", [False, True])
async def test_a_stop_just_before_a_turn_begins_stops_that_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.hear("hello")
        gate, asked = Gate(fixture, monkeypatch, after=after), len(model.requests)
        fixture.platform.say("wipe the disk")
        await gate.there_is_one.wait()
        fixture.platform.say("/stop")
        await until(lambda: any("Stopped before" in text for text in fixture.platform.texts()))
        gate.goes.set()
        await fixture.rest()
        assert len(model.requests) == asked, "the model must not be called"
        *_, turn = await fixture.turns()
        assert (turn.user_text, turn.status) == ("wipe the disk", TurnStatus.INTERRUPTED)
        assert (await fixture.hear("and now?")) == ["Yes."], "later messages must be answered"


async def test_a_stop_with_nothing_to_stop_stops_nothing_later(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.hear("hello")
        fixture.platform.say("/stop")
        fixture.platform.say("go on")
        await until(lambda: len(fixture.platform.texts()) == 3)
        assert fixture.platform.texts()[1:] == ["Nothing is running here.", "Yes."]


async def test_a_turn_of_another_process_is_awaited_without_busy_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.hear("hello")
        session, owner = await fixture.session(), (await fixture.session()).owner
        async with Runtime(replace(fixture.runtime.settings, platforms={}), clock=fixture.clock) as other:
            await other.start()
            await other.lifecycle.cross(CLI, Resume(session.id), owner=owner)
            await other.lifecycle.accept(Inbound(CLI, owner, "from the terminal"))
            ticket = await other.lifecycle.begin_turn(CLI)
            assert ticket is not None
            tries, begin = 0, fixture.gateway.lifecycle.begin_turn

            async def counted(key: SessionKey) -> Any:
                nonlocal tries
                tries += 1
                return await begin(key)

            monkeypatch.setattr(fixture.gateway.lifecycle, "begin_turn", counted)
            fixture.platform.say("and from here")
            await until(lambda: tries)
            await asyncio.sleep(2.0)
            assert tries == 1
            await other.lifecycle.commit_turn(ticket, [Message(Role.USER, "from the terminal")], None)
            committed_at = time.monotonic()
            await until(lambda: fixture.platform.texts() == ["Yes.", "Yes."])
            assert time.monotonic() - committed_at < 2.0


async def test_a_stop_applies_to_messages_before_it(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.hear("hello")
        owner = (await fixture.session()).owner
        row, _ = await fixture.gateway.lifecycle.accept(Inbound(ANNA, owner, "go on"))
        assert not await fixture.gateway.worker.stop_next(ANNA, row.id - 1)
        assert await fixture.gateway.worker.stop_next(ANNA, row.id + 1)
        await fixture.rest()
        *_, turn = await fixture.turns()
        assert (turn.user_text, turn.status) == ("go on", TurnStatus.INTERRUPTED)
        assert not await fixture.gateway.worker.stop_next(ANNA, row.id + 1)
        assert await fixture.hear("and now?") == ["Yes."]


async def test_a_failing_command_is_not_retried_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        answer_command, tries = fixture.gateway.lifecycle.answer_command, 0

        async def mistaken(row: Any, *given: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries < 100 and "status" in row.inbound.text:
                raise ZeroDivisionError
            return await answer_command(row, *given)

        monkeypatch.setattr(fixture.gateway.lifecycle, "answer_command", mistaken)
        fixture.platform.say("/status")
        await until(lambda: tries)
        await asyncio.sleep(0.3)
        assert tries < 5


async def test_a_cut_off_turn_is_kept_unanswered_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SWEEP_S", 0.05)
    platform = FakePlatform()
    async with ModelServer(lambda _: Say("slowly " * 50, chunks=50, delay_s=0.1)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
            platform.say("tell me")
            await until(lambda: fixture.gateway.worker.running)
            platform.say("and then?")
            await until(lambda: len(platform.taken) == 2)
        async with gateway_fixture(tmp_path, model, platform) as fixture:

            def none(model: str = "") -> Any:
                raise BadConfig("no model is configured")

            monkeypatch.setattr(fixture.runtime, "choices", none)
            for task in fixture.gateway.worker._tasks():  # noqa: SLF001
                task.cancel()
            await until(lambda: len(platform.texts()) == 2, "that both are told")
            assert all("is kept" in text for text in platform.texts())
            turns = await fixture.turns()
            assert [turn.user_text for turn in turns] == ["tell me", "and then?"]


async def test_a_steering_message_does_not_overtake_earlier_ones(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow_all=True, busy="steer")

    def script(request: Any) -> Say:
        tools = sum(1 for message in request.messages if message.role == "tool")
        return Say("Done.") if tools >= 2 else Say("", (ToolCall(f"call{tools}", "nothing", "{}"),), delay_s=0.3)

    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, account=account) as fixture:
        fixture.platform.say("one")
        fixture.platform.say("two")
        await until(lambda: fixture.gateway.worker.running)
        fixture.platform.say("three")
        await until(lambda: len(fixture.platform.taken) == 3)
        await until(lambda: fixture.platform.texts() != [])
        await fixture.rest()
        said = [m.content for turn in await fixture.turns() for m in turn.messages if m.role == "user"]
        assert said == ["one", "two", "three"]


async def test_a_boundary_command_runs_after_earlier_commands(tmp_path: Path) -> None:
    slow = Say("slowly " * 50, chunks=50, delay_s=0.1)
    async with ModelServer(lambda _: slow) as model, gateway_fixture(tmp_path, model) as fixture:
        fixture.platform.say("long story")
        await until(lambda: fixture.gateway.worker.running)
        old = (await fixture.session()).id
        fixture.platform.say("/title Trip to Rome")
        fixture.platform.say("/memory add likes trains")
        fixture.platform.say("/new")
        await until(lambda: len(fixture.platform.texts()) >= 3)
        await fixture.rest()
        assert (await fixture.session()).title is None
        left = await fixture.runtime.store.read(lambda uow: uow.sessions.get(old))
        assert left is not None
        assert left.title == "Trip to Rome"
        assert ["new session" in text for text in fixture.platform.texts()] == [False, False, True]


async def test_the_expiry_notice_precedes_the_first_answer_of_the_next_session(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=3600.0))
    async with (
        ModelServer(lambda _: Say("Yes.")) as model,
        gateway_fixture(tmp_path, model, policies=policies) as fixture,
    ):
        await fixture.hear("hello")
        # The session expires before the expiry timer runs.
        fixture.clock.advance(7200.0)
        fixture.platform.say("hello again")
        await until(lambda: len(fixture.platform.texts()) == 3)
        _, notice, answer = fixture.platform.texts()
        assert "has ended" in notice
        assert answer == "Yes."


FAILURES = [
    (Fail(400, "no such thing at box-7"), "rejected this"),
    (Fail(401, "who are you, box-7?"), "as it is set up"),
    (Fail(404, "box-7 has no model one"), "as it is set up"),
    (Fail(413, "box-7: too much"), "more than the model can read"),
    (Fail(503, "box-7 is down", headers={"Retry-After": "3600"}), "can't be reached now"),
]


ME = GatewaySettings(links={"me": ("fake:mine",)})


def reference(text: str) -> str:
    found = re.search(r"under (\w{8})\.", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize(("fail", "plain"), FAILURES, ids=lambda value: str(getattr(value, "status", "")))
async def test_guests_get_plain_model_errors_and_the_owner_details(
    tmp_path: Path, fail: Fail, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    platform = FakePlatform()
    async with ModelServer(lambda _: fail) as model, gateway_fixture(tmp_path, model, platform, gateway=ME) as fixture:
        (told,) = await fixture.hear("hello", "7")
        assert plain in told
        assert "127.0.0.1" not in told
        assert "box-7" not in told
        named = [record for record in caplog.records if record.__dict__.get("reference") == reference(told)]
        logged = [record.getMessage() for record in named]
        assert logged
        assert "127.0.0.1" in logged[0]
        assert "127.0.0.1" in (await fixture.hear("hello", "mine"))[0]
