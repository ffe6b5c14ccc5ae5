"""Updates: admitted, stored once, and limited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.faults.fixture import Scene
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.gateway.access import FOR_ADMINS
from everthread.testing.loopback import protocol as wire
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def taken(fixture: GatewayFixture, count: int) -> None:
    await until(lambda: len(fixture.platform.taken) >= count, "all of it was taken")
    await fixture.rest()


async def test_an_update_that_is_delivered_twice_is_answered_once(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello Anna.")) as model, gateway_fixture(tmp_path, model) as fixture:
        update = fixture.platform.say("hello")
        fixture.platform.deliver(update)
        await until(lambda: len(fixture.platform.taken) == 2)
        await fixture.rest()
        fixture.platform.deliver(update)
        await until(lambda: len(fixture.platform.taken) == 3)
        await fixture.rest()
        assert fixture.platform.texts() == ["Hello Anna."]


async def test_a_stranger_gets_no_reply(tmp_path: Path) -> None:
    from everthread.config.schema import PlatformAccount

    account = PlatformAccount("fake", allow=("bert",))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=GatewaySettings(pairing=False)) as fixture,
    ):
        fixture.platform.say("hello")
        fixture.platform.say("hello", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7") == ["Hello."])
        assert fixture.platform.texts() == []


async def test_help_lists_the_commands_that_the_sender_may_use(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",), admins=("root",))
    gateway = GatewaySettings(admin_commands=("model", "export"))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as fixture,
    ):
        listed: dict[str, set[str]] = {}
        for user, chat in (("bert", "7"), ("root", "1")):
            fixture.platform.say("/help", user=user, chat=chat)
            await until(lambda chat=chat: fixture.platform.texts(chat) != [])
            listed[user] = set(re.findall(r"^/(\w+)", fixture.platform.texts(chat)[0], re.MULTILINE))
        assert listed["root"] - listed["bert"] == {"pair", "model", "export"}
        assert {"new", "stop", "help"} <= listed["bert"]
        assert not listed["root"] & {"quit", "exit"}
        fixture.platform.say("/help model", user="bert", chat="7")
        fixture.platform.say("/export", user="bert", chat="7")
        fixture.platform.say("/quit", user="bert", chat="7")
        await until(lambda: len(fixture.platform.texts("7")) == 4)
        assert "You may not use /model here" in fixture.platform.texts("7")[1]
        assert fixture.platform.texts("7")[2] == FOR_ADMINS
        assert "can't leave here" in fixture.platform.texts("7")[3]


async def test_messages_over_the_rate_limit_are_dropped_except_stop_and_help(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway) as fixture,
    ):
        for number in range(5):
            fixture.platform.say(f"message {number}")
        fixture.platform.say("/title Lisbon")
        fixture.platform.say("/help")
        fixture.platform.say("/stop")
        fixture.platform.say("hello", user="bert", chat="7")
        await taken(fixture, 9)
        told = [text for text in fixture.platform.texts() if "Too many messages" in text]
        assert len(told) == 1
        assert re.search(r"Write again in (29|30) seconds", told[0])
        assert [turn.user_text for turn in await fixture.turns()] == ["message 0", "message 1"]
        assert (await fixture.session()).title != "Lisbon"
        assert any("/new [title]" in text for text in fixture.platform.texts())
        assert len(fixture.platform.texts()) == 5, "two answers, the notice, /help and /stop"
        assert fixture.platform.texts("7") == ["Hello."]


async def test_repeated_updates_do_not_use_up_the_rate_limit(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway) as fixture,
    ):
        update = fixture.platform.say("one")
        for _ in range(4):
            fixture.platform.deliver(update)
        fixture.platform.say("two")
        await taken(fixture, 6)
        assert [turn.user_text for turn in await fixture.turns()] == ["one", "two"]
        fixture.platform.say("three")
        await until(lambda: "Too many messages" in fixture.platform.texts()[-1])


@pytest.mark.timeout(90)
async def test_updates_are_repeated_until_they_are_stored(tmp_path: Path) -> None:
    async with Scene(tmp_path / "scene") as scene:
        await scene.people.fault(wire.Fault("drop_after", "poll", times=1))
        await scene.people.say_all([(f"c{number}", f"hello {number}") for number in range(5)])
        await scene.start()
        for number in range(5):
            await scene.answered(f"c{number}", f"hello {number}")
        await scene.rest()
        await scene.people.refresh()
        assert [len(scene.people.answers(f"c{number}")) for number in range(5)] == [1] * 5
