"""The gateway, wired up whole: what people write on a platform, and what they see there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fake_platform import FakePlatform
from tests.gateway import gateway_fixture
from tests.runtime import until

from everthread.config.settings import GatewaySettings
from everthread.domain.model import TurnStatus
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1]}")


async def test_a_message_is_answered_where_it_was_written(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello Anna.")) as model, gateway_fixture(tmp_path, model) as there:
        there.platform.say("hello")
        await until(lambda: there.platform.texts() == ["Hello Anna."])
        await there.rest()
        (turn,) = await there.turns()
        assert (turn.user_text, turn.assistant_text, turn.status) == ("hello", "Hello Anna.", TurnStatus.DONE)


async def test_an_update_that_is_delivered_twice_is_answered_once(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello Anna.")) as model, gateway_fixture(tmp_path, model) as there:
        update = there.platform.say("hello")
        there.platform.deliver(update)
        await until(lambda: len(there.platform.taken) == 2)
        await there.rest()
        there.platform.deliver(update)
        await until(lambda: len(there.platform.taken) == 3)
        await there.rest()
        assert there.platform.texts() == ["Hello Anna."]


async def test_messages_behind_a_new_conversation_are_set_aside_and_named(tmp_path: Path) -> None:
    """S30: m2 and m3 wait behind a running turn, then /new."""
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        gateway_fixture(tmp_path, model) as there,
    ):
        there.platform.say("m1")
        await until(lambda: there.gateway.worker.running == 1)
        old = await there.session()
        there.platform.say("m2")
        there.platform.say("m3")
        there.platform.say("/new")
        there.platform.say("m4")
        await until(lambda: any("new session" in text for text in there.platform.texts()))
        assert any('Set aside without an answer: "m2", "m3"' in text for text in there.platform.texts())
        assert any('The answer to "m1" was stopped' in text for text in there.platform.texts())
        await until(lambda: there.gateway.worker.running == 1)
        new = await there.session()
        assert new.id != old.id
        assert [(turn.user_text, turn.status) for turn in await there.turns(old.id)] == [
            ("m2", TurnStatus.SET_ASIDE),
            ("m3", TurnStatus.SET_ASIDE),
            ("m1", TurnStatus.LATE),
        ]


async def test_each_of_many_messages_that_are_set_aside_is_named(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        gateway_fixture(tmp_path, model) as there,
    ):
        there.platform.say("m0")
        await until(lambda: there.gateway.worker.running == 1)
        for number in range(1, 13):
            there.platform.say(f"m{number}")
        there.platform.say("/new")
        await until(lambda: any("new session" in text for text in there.platform.texts()))
        named = ", ".join(f'"m{number}"' for number in range(1, 13))
        assert any(f"Set aside without an answer: {named}." in text for text in there.platform.texts())


async def test_a_stranger_hears_nothing(tmp_path: Path) -> None:
    from everthread.config.settings import PlatformAccount

    account = PlatformAccount("fake", allow=("bert",))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=GatewaySettings(pairing=False)) as there,
    ):
        there.platform.say("hello")
        there.platform.say("hello", user="bert", chat="7")
        await until(lambda: there.platform.texts("7") == ["Hello."])
        assert there.platform.texts() == []


async def test_of_an_answer_that_is_there_at_once_nobody_is_told_that_it_is_written(tmp_path: Path) -> None:
    platform = FakePlatform(typing=True)
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, platform) as there:
        for number in range(1, 6):
            there.platform.say("hello")
            await until(lambda number=number: len(there.platform.texts()) == number)
        await there.rest()
        # On a busy machine one of them may take longer.
        assert platform.typing < 5


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path) -> None:
    platform = FakePlatform(edits=True, edit_every_s=0.05, typing=True)
    script = lambda _: Say(" ".join(f"word{n}" for n in range(40)), chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform) as there:
        there.platform.say("tell me")
        await until(lambda: there.platform.texts() and there.platform.texts()[0].endswith("word39"))
        await there.rest()
        assert len(there.platform.sent) == 1
        assert len(platform.edits) > 1
        assert platform.typing
