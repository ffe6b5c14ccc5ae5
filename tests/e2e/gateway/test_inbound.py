"""Updates: admitted, stored once, and limited."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.faults.fixture import Scene
from tests.gateway import GatewayFixture, echo, gateway_fixture
from tests.runtime import until

from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.domain.model import ChatType
from everthread.gateway.access import FOR_ADMINS
from everthread.gateway.inbound import FAILED, FAILED_COMMAND
from everthread.ports.platform import Capabilities, Media, Update
from everthread.store.failed_updates import FailedUpdate
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


class BrittleCapabilities:
    """The capabilities of a platform whose code fails for messages with attachments."""

    def __init__(self, real: Capabilities) -> None:
        self._real = real
        self.is_broken = True

    def __getattr__(self, name: str) -> Any:
        if name == "fetches" and self.is_broken:
            raise LookupError("hives in the way")
        return getattr(self._real, name)


class BrittlePlatform(FakePlatform):
    def __init__(self) -> None:
        super().__init__()
        self.brittle = BrittleCapabilities(self.capabilities)
        self.capabilities = cast(Capabilities, self.brittle)

    def show(self, text: str, update_id: str) -> Update:
        media = (Media("image", handle="h"),)
        update = Update(self.name, "bot", update_id, "42", ChatType.DM, "42", text, media=media)
        self.deliver(update)
        return update


async def kept_updates(fixture: GatewayFixture) -> tuple[FailedUpdate, ...]:
    return await fixture.runtime.store.read(lambda uow: uow.failed_updates.newest(10))


async def test_an_update_whose_handling_fails_is_kept_reported_and_retried(tmp_path: Path) -> None:
    platform = BrittlePlatform()
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        update = platform.show("see my hives", "7")
        await until(lambda: platform.texts() == [FAILED])
        platform.deliver(update)
        assert await fixture.hear("hello") == ["You said hello"], "those behind it do not wait"
        await until(lambda: platform.taken == ["7", "7", "1"])
        assert platform.texts() == [FAILED, "You said hello"], "the sender is told once"
        [row] = await kept_updates(fixture)
        assert (row.owner, row.problem, row.attempts) == ("fake:42", "LookupError", 1)
        incidents = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(10))
        assert {incident.source for incident in incidents} == {"inbound"}
        assert not any("hives" in incident.text for incident in incidents), "an incident quotes nobody"
        await fixture.gateway.inbound.retry_failed()
        assert await kept_updates(fixture) == (row,), "it is not due yet"
        await fixture.later(row.retry_at - row.at)
        await fixture.gateway.inbound.retry_failed()
        [again] = await kept_updates(fixture)
        assert again.attempts == 2
        assert again.retry_at - fixture.clock.now() > 100, "each failure doubles the pause"
        platform.brittle.is_broken = False
        await fixture.later(again.retry_at - again.at)
        await fixture.gateway.inbound.retry_failed()
        await until(lambda: len(platform.texts()) == 3)
        assert platform.texts()[-1].startswith("You said see my hives")
        assert await kept_updates(fixture) == ()


async def test_a_kept_update_is_retried_after_a_start(tmp_path: Path) -> None:
    async with ModelServer(echo) as model:
        first = BrittlePlatform()
        async with gateway_fixture(tmp_path, model, first) as fixture:
            first.show("see my hives", "7")
            await until(lambda: first.texts() == [FAILED])
        second = FakePlatform()
        async with gateway_fixture(tmp_path, model, second) as fixture:
            await fixture.gateway.inbound.retry_failed()
            await until(lambda: len(second.texts()) == 1)
            assert second.texts()[0].startswith("You said see my hives")
            assert await kept_updates(fixture) == ()


async def test_the_rate_limit_refuses_no_kept_update(tmp_path: Path) -> None:
    platform, gateway = BrittlePlatform(), GatewaySettings(messages_per_minute=2)
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model, platform, gateway=gateway) as fixture:
        platform.show("see my hives", "7")
        await until(lambda: platform.texts() == [FAILED])
        platform.brittle.is_broken = False
        await fixture.later(3600)
        for number in range(3):
            platform.say(f"message {number}")
        await taken(fixture, 4)
        assert any("Too many messages" in text for text in platform.texts()), "the limit is used up"
        await fixture.gateway.inbound.retry_failed()
        await until(lambda: platform.texts()[-1].startswith("You said see my hives"))
        assert await kept_updates(fixture) == ()
        platform.say("message 3")
        await taken(fixture, 5)
        assert [turn.user_text.split("\n")[0] for turn in await fixture.turns()] == [
            "message 0",
            "message 1",
            "see my hives",
        ], "a retry returns nothing to the limit"


async def test_a_command_that_runs_at_once_is_not_kept_and_its_sender_is_told(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        platform = fixture.platform
        unbindable = cast(str, ["not", "an id"])
        for number, text in enumerate(("/stop", "/status", "/steer", "/undo", "/queue", "/title Bees", "hello")):
            platform.deliver(Update("fake", "bot", f"u{number}", "42", ChatType.DM, "42", text, message_id=unbindable))
        await taken(fixture, 7)
        assert sorted(platform.texts()) == sorted(
            [FAILED_COMMAND.format(name=name) for name in ("status", "steer", "undo")]
            + [FAILED] * 3
            + ["Nothing is running here."]
        )
        assert {row.update_id for row in await kept_updates(fixture)} == {"u4", "u5", "u6"}
        incidents = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(10))
        assert sum("is not retried" in incident.text for incident in incidents) == 3


async def test_an_update_with_wrong_types_is_kept_and_delays_no_other(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        broken = Update("fake", "bot", cast(str, None), "42", ChatType.DM, "42", cast(str, None))
        fixture.platform.deliver(broken)
        fixture.platform.deliver(replace(broken, update_id=cast(str, 8), text=cast(str, object())))
        assert await fixture.hear("hello", chat="7") == ["You said hello"]
        [row] = await kept_updates(fixture)
        assert (row.problem, row.update_id) == ("AttributeError", "")
        await fixture.later(3600)
        await fixture.gateway.inbound.retry_failed()
        [row] = await kept_updates(fixture)
        assert row.problem == "ValidationError"
