"""What changes under a bot on Telegram: groups that get another id, messages that are edited, updates of a new kind."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until
from tests.telegram_gateway import ANN, BOB, TOKEN, telegram_gateway

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.config.settings import PlatformAccount
from everthread.domain.model import SessionKey
from everthread.ports.platform import Address, File, Outbound
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

OLD, NEW = -501, -100501
GROUP = wire.Group(OLD, "The office", kind="group")
ODD = b'{"odd": true}'


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the locks are that all homes share."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model() -> ModelServer:
    """Says how much it has been told in this conversation, and what last."""

    def script(request: Any) -> Say:
        said = [str(message.content) for message in request.messages if message.role == "user"]
        return Say(f"{len(said)}: {said[-1]}")

    return ModelServer(script)


# --- Groups that get another id --------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", ["shared", "per_user"])
async def test_a_conversation_goes_on_when_its_group_becomes_a_supergroup(tmp_path: Path, groups: str) -> None:
    account = {"trigger": "all", "groups": groups}
    name = "Ann: " if groups == "shared" else ""
    key = SessionKey.parse(f"agent:main:telegram:group:{OLD}" + ("" if groups == "shared" else f"::{ANN}"))
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with telegram_gateway(tmp_path, server, emulator, account=account) as there:
            await there.people.introduce(ANN, "Ann")
            await there.people.group(GROUP)
            await there.people.say(ANN, "one", chat=OLD)
            await there.people.until(lambda: there.people.texts(OLD) == [f"1: {name}one"], "an answer")
            await there.people.upgrade(ANN, OLD, NEW)
            await there.people.say(ANN, "two", chat=NEW)
            await there.people.until(lambda: there.people.texts(NEW) == [f"2: {name}two"], "the same conversation")
        async with telegram_gateway(tmp_path, server, emulator, account=account) as there:
            await there.people.say(ANN, "three", chat=NEW)
            wanted = [f"2: {name}two", f"3: {name}three"]
            await there.people.until(lambda: there.people.texts(NEW) == wanted, "after a restart too")
            assert len(await there.turns((await there.session(key)).id)) == 3


async def test_a_group_that_moved_while_nobody_looked_goes_on_in_the_new_place(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with telegram_gateway(tmp_path, server, emulator, account={"trigger": "all"}) as there:
            await there.people.group(GROUP)
            await there.people.say(ANN, "one", chat=OLD)
            await there.people.until(lambda: there.people.texts(OLD) == ["1: one"], "an answer")
        async with TelegramUsers(emulator.base_url) as people:
            await people.say(ANN, "two", chat=OLD)
            await people.upgrade(ANN, OLD, NEW)
            await people.say(ANN, "three", chat=NEW)
        async with telegram_gateway(tmp_path, server, emulator, account={"trigger": "all"}) as there:
            wanted = ["2: two", "3: three"]
            await there.people.until(lambda: there.people.texts(NEW) == wanted, "both, in order, in the new place")


async def test_whatever_is_sent_to_the_old_id_arrives_at_the_new_one(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, TelegramUsers(emulator.base_url) as people:
        await people.group(GROUP)
        account = PlatformAccount("telegram", base_url=emulator.base_url)
        platform = TelegramPlatform("telegram", account, TOKEN, TokenLock(tmp_path, TOKEN), commands={})
        await people.upgrade(ANN, OLD, NEW)
        to = Address(str(OLD))
        await platform.show_typing(to)
        message_id = await platform.send(Outbound("t1.0", to, "hello"))
        await platform.edit(to, message_id, "hello again")
        await platform.send(Outbound("t2.0", to, "", files=(File("a.md", b"a"),)))
        await people.refresh()
        assert people.texts(NEW) == ["hello again", ""]
        assert people.texts(OLD) == []
        assert emulator.refused == {"400": 1}, "it is told once"
        await platform.aclose()


# --- What can't be read ----------------------------------------------------------------------------------------------


def webhook() -> dict[str, Any]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return {"webhook_url": f"http://127.0.0.1:{port}/telegram", "webhook_port": port}


@pytest.mark.parametrize("account", [{}, webhook()], ids=["polled", "webhook"])
async def test_an_update_that_can_not_be_read_is_passed_over_and_told_of(
    tmp_path: Path, account: dict[str, Any]
) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with TelegramUsers(emulator.base_url) as people:
            await people.say(ANN, "before")
            odd = await people.odd(ODD)
            await people.say(BOB, "after")
        async with telegram_gateway(tmp_path, server, emulator, account=account) as there:
            await there.people.until(lambda: there.people.texts(BOB) == ["1: after"], "what came after it")
            await there.people.until(lambda: there.people.texts(ANN) == ["1: before"], "what came before it")
            await until(lambda: not emulator.state.updates.pending, "all are acknowledged")
            assert await there.hear("and now") == ["2: and now"]
            incidents = await there.runtime.store.read(lambda uow: uow.incidents.newest(10))
            assert [one.text.partition(" (")[0] for one in incidents] == [f"telegram: update {odd} could not be read"]


# --- What is edited --------------------------------------------------------------------------------------------------


async def test_what_somebody_edits_is_not_answered_again_and_breaks_nothing(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as there:
        said = await there.people.say(ANN, "helo")
        await there.people.until(lambda: there.people.texts(ANN) == ["1: helo"], "an answer")
        await there.people.correct(ANN, ANN, said.message_id, "hello")
        assert await there.hear("go on") == ["2: go on"]
