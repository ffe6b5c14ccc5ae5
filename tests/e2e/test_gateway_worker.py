"""What waits at a key is done, in its order, whatever goes wrong there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, gateway_fixture
from tests.runtime import until

from everthread.config.settings import GatewaySettings, PlatformAccount
from everthread.domain.errors import BadConfig
from everthread.domain.model import ChatType, Reply, ReplyState, SessionKey, ToolCall
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.gateway import outbox as delivery
from everthread.gateway import server as serving
from everthread.gateway.routing import owner_of
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def test_a_command_whose_answer_can_not_be_kept_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        answer_command, tries = there.gateway.lifecycle.answer_command, 0

        async def mistaken(row: Any, text: str | None) -> Any:
            nonlocal tries
            tries += 1
            if tries < 100 and "status" in row.inbound.text:
                raise ZeroDivisionError
            return await answer_command(row, text)

        monkeypatch.setattr(there.gateway.lifecycle, "answer_command", mistaken)
        there.platform.say("/status")
        await until(lambda: tries)
        await asyncio.sleep(0.3)
        assert tries < 5


async def test_a_turn_that_was_cut_off_is_kept_if_no_model_can_be_asked_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SWEEP_S", 0.05)
    platform = FakePlatform()
    async with ModelServer(lambda _: Say("slowly " * 50, chunks=50, delay_s=0.1)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
            platform.say("tell me")
            await until(lambda: there.gateway.worker.running)
            platform.say("and then?")
            await until(lambda: len(platform.taken) == 2)
        async with gateway_fixture(tmp_path, model, platform) as there:

            def none(model: str = "") -> Any:
                raise BadConfig("no model is configured")

            monkeypatch.setattr(there.runtime, "choices", none)
            for task in there.gateway.worker._tasks():  # noqa: SLF001
                task.cancel()
            await until(lambda: len(platform.texts()) == 2, "that both are told")
            assert all("is kept" in text for text in platform.texts())
            turns = await there.turns()
            assert [turn.user_text for turn in turns] == ["tell me", "and then?"]


async def test_what_is_steered_does_not_overtake_what_was_said_before_it(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow_all=True, busy="steer")

    def script(request: Any) -> Say:
        tools = sum(1 for message in request.messages if message.role == "tool")
        return Say("Done.") if tools >= 2 else Say("", (ToolCall(f"call{tools}", "nothing", "{}"),), delay_s=0.3)

    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, account=account) as there:
        there.platform.say("one")
        there.platform.say("two")
        await until(lambda: there.gateway.worker.running)
        there.platform.say("three")
        await until(lambda: len(there.platform.taken) == 3)
        await until(lambda: there.platform.texts() != [])
        await there.rest()
        said = [m.content for turn in await there.turns() for m in turn.messages if m.role == "user"]
        assert said == ["one", "two", "three"]


def test_two_groups_are_two_owners_whatever_their_ids_have_in_them() -> None:
    one = SessionKey("main", "fake", ChatType.THREAD, "a:b")
    other = SessionKey("main", "fake", ChatType.THREAD, "a", "b")
    assert owner_of(one, "x") != owner_of(other, "x")


async def test_what_nobody_can_send_any_more_does_not_hide_what_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SWEPT_MAX", 3)
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        gone = SessionKey.parse("agent:main:gone:dm:42")
        for number in range(10):
            reply = Reply(f"old-{number}", gone, "", "me", "hello", ReplyState.READY, float(number))
            await there.runtime.store.write(lambda uow, reply=reply: uow.outbox.put_reply(reply))
        news = Reply("new", ANNA, "", "me", "a notice", ReplyState.READY, 100.0)
        await there.runtime.store.write(lambda uow: uow.outbox.put_reply(news))
        for _ in range(10):
            await there.gateway.outbox.sweep()
        await until(lambda: there.platform.texts() == ["a notice"])


async def test_what_a_handoff_sets_aside_elsewhere_is_named(tmp_path: Path) -> None:
    other = FakePlatform("other")
    slow = lambda request: (  # noqa: E731
        Say("slowly " * 50, chunks=50, delay_s=0.1) if "long" in str(request.messages[-1].content) else Say("Yes.")
    )
    async with (
        ModelServer(slow) as model,
        gateway_fixture(
            tmp_path, model, others=(other,), gateway=GatewaySettings(links={"anna": ("fake:42", "other:7")})
        ) as there,
    ):
        await there.hear("hello")
        other.say("long story", chat="7")
        await until(lambda: there.gateway.worker.running)
        other.say("a second thing", chat="7")
        await until(lambda: len(other.taken) == 2)
        (said,) = await there.hear("/handoff other")
        await there.rest()
        assert "Continuing" in other.texts("7")[-1]
        assert "a second thing" in said
        assert "long story" in said


async def test_a_command_that_leaves_comes_after_those_that_were_given_before_it(tmp_path: Path) -> None:
    slow = Say("slowly " * 50, chunks=50, delay_s=0.1)
    async with ModelServer(lambda _: slow) as model, gateway_fixture(tmp_path, model) as there:
        there.platform.say("long story")
        await until(lambda: there.gateway.worker.running)
        old = (await there.session()).id
        there.platform.say("/title Trip to Rome")
        there.platform.say("/memory add likes trains")
        there.platform.say("/new")
        await until(lambda: len(there.platform.texts()) >= 3)
        await there.rest()
        assert (await there.session()).title is None
        left = await there.runtime.store.read(lambda uow: uow.sessions.get(old))
        assert left is not None
        assert left.title == "Trip to Rome"
        assert ["new session" in text for text in there.platform.texts()] == [False, False, True]


async def test_that_a_conversation_has_ended_is_said_before_the_next_is_answered(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=3600.0))
    async with (
        ModelServer(lambda _: Say("Yes.")) as model,
        gateway_fixture(tmp_path, model, policies=policies) as there,
    ):
        await there.hear("hello")
        # Before the timer: as if nothing had run meanwhile.
        there.clock.ahead_s += 7200.0
        there.platform.say("hello again")
        await until(lambda: len(there.platform.texts()) == 3)
        _, notice, answer = there.platform.texts()
        assert "has ended" in notice
        assert answer == "Yes."
