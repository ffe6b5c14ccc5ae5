"""Updates: admitted, stored once, and limited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.faults.fixture import Scene
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.settings import GatewaySettings, PlatformAccount
from everthread.gateway.access import FOR_ADMINS
from everthread.testing.loopback import protocol as wire
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


async def taken(there: GatewayFixture, count: int) -> None:
    await until(lambda: len(there.platform.taken) >= count, "all of it was taken")
    await there.rest()


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


async def test_a_stranger_gets_no_reply(tmp_path: Path) -> None:
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


async def test_help_lists_the_commands_that_the_sender_may_use(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",), admins=("root",))
    gateway = GatewaySettings(admin_commands=("model", "export"))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as there,
    ):
        listed: dict[str, set[str]] = {}
        for user, chat in (("bert", "7"), ("root", "1")):
            there.platform.say("/help", user=user, chat=chat)
            await until(lambda chat=chat: there.platform.texts(chat) != [])
            listed[user] = set(re.findall(r"^/(\w+)", there.platform.texts(chat)[0], re.MULTILINE))
        assert listed["root"] - listed["bert"] == {"pair", "model", "export"}
        assert {"new", "stop", "help"} <= listed["bert"]
        assert not listed["root"] & {"quit", "exit"}
        there.platform.say("/help model", user="bert", chat="7")
        there.platform.say("/export", user="bert", chat="7")
        there.platform.say("/quit", user="bert", chat="7")
        await until(lambda: len(there.platform.texts("7")) == 4)
        assert "You may not use /model here" in there.platform.texts("7")[1]
        assert there.platform.texts("7")[2] == FOR_ADMINS
        assert "can't leave here" in there.platform.texts("7")[3]


async def test_messages_over_the_rate_limit_are_dropped_except_stop_and_help(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway) as there,
    ):
        for number in range(5):
            there.platform.say(f"message {number}")
        there.platform.say("/title Lisbon")
        there.platform.say("/help")
        there.platform.say("/stop")
        there.platform.say("hello", user="bert", chat="7")
        await taken(there, 9)
        told = [text for text in there.platform.texts() if "Too many messages" in text]
        assert len(told) == 1
        assert re.search(r"Write again in (29|30) seconds", told[0])
        assert [turn.user_text for turn in await there.turns()] == ["message 0", "message 1"]
        assert (await there.session()).title != "Lisbon"
        assert any("/new [title]" in text for text in there.platform.texts())
        assert len(there.platform.texts()) == 5, "two answers, the notice, /help and /stop"
        assert there.platform.texts("7") == ["Hello."]


async def test_repeated_updates_do_not_use_up_the_rate_limit(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway) as there,
    ):
        update = there.platform.say("one")
        for _ in range(4):
            there.platform.deliver(update)
        there.platform.say("two")
        await taken(there, 6)
        assert [turn.user_text for turn in await there.turns()] == ["one", "two"]
        there.platform.say("three")
        await until(lambda: "Too many messages" in there.platform.texts()[-1])


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
