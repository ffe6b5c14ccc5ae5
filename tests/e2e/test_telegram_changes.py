"""Changes on Telegram: groups that get a new id, edited messages, and unknown kinds of updates."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until
from tests.telegram_gateway import ANN, BOB, TOKEN, telegram_gateway

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.config.schema import PlatformAccount
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
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model() -> ModelServer:
    """Model server that returns the number of user messages in the conversation and the newest one."""

    def script(request: Any) -> Say:
        said = [str(message.content) for message in request.messages if message.role == "user"]
        return Say(f"{len(said)}: {said[-1]}")

    return ModelServer(script)


# --- Groups with a new id --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", ["shared", "per_user"])
async def test_a_conversation_continues_when_its_group_becomes_a_supergroup(tmp_path: Path, groups: str) -> None:
    account = {"trigger": "all", "groups": groups}
    name = "Ann: " if groups == "shared" else ""
    key = SessionKey.parse(f"agent:main:telegram:group:{OLD}" + ("" if groups == "shared" else f"::{ANN}"))
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with telegram_gateway(tmp_path, server, emulator, account=account) as fixture:
            await fixture.people.introduce(ANN, "Ann")
            await fixture.people.group(GROUP)
            await fixture.people.say(ANN, "one", chat=OLD)
            await fixture.people.until(lambda: fixture.people.texts(OLD) == [f"1: {name}one"], "an answer")
            await fixture.people.upgrade(ANN, OLD, NEW)
            await fixture.people.say(ANN, "two", chat=NEW)
            await fixture.people.until(lambda: fixture.people.texts(NEW) == [f"2: {name}two"], "the same conversation")
        async with telegram_gateway(tmp_path, server, emulator, account=account) as fixture:
            await fixture.people.say(ANN, "three", chat=NEW)
            wanted = [f"2: {name}two", f"3: {name}three"]
            await fixture.people.until(lambda: fixture.people.texts(NEW) == wanted, "after a restart too")
            assert len(await fixture.turns((await fixture.session(key)).id)) == 3


async def test_a_group_migrated_while_the_gateway_was_down_continues_under_its_new_id(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with telegram_gateway(tmp_path, server, emulator, account={"trigger": "all"}) as fixture:
            await fixture.people.group(GROUP)
            await fixture.people.say(ANN, "one", chat=OLD)
            await fixture.people.until(lambda: fixture.people.texts(OLD) == ["1: one"], "an answer")
        async with TelegramUsers(emulator.base_url) as people:
            await people.say(ANN, "two", chat=OLD)
            await people.upgrade(ANN, OLD, NEW)
            await people.say(ANN, "three", chat=NEW)
        async with telegram_gateway(tmp_path, server, emulator, account={"trigger": "all"}) as fixture:
            wanted = ["2: two", "3: three"]
            await fixture.people.until(lambda: fixture.people.texts(NEW) == wanted, "both, in order, in the new place")


async def test_messages_to_the_old_group_id_are_sent_to_the_new_one(tmp_path: Path) -> None:
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
        assert emulator.refused == {"400": 1}, "the old id was used more than once"
        await platform.aclose()


# --- Unreadable updates ----------------------------------------------------------------------------------------------


def webhook() -> dict[str, Any]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return {"webhook_url": f"http://127.0.0.1:{port}/telegram", "webhook_port": port}


@pytest.mark.parametrize("account", [{}, webhook()], ids=["polled", "webhook"])
async def test_an_unreadable_update_is_skipped_and_reported(tmp_path: Path, account: dict[str, Any]) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with TelegramUsers(emulator.base_url) as people:
            await people.say(ANN, "before")
            odd = await people.odd(ODD)
            await people.say(BOB, "after")
        async with telegram_gateway(tmp_path, server, emulator, account=account) as fixture:
            await fixture.people.until(lambda: fixture.people.texts(BOB) == ["1: after"], "what came after it")
            await fixture.people.until(lambda: fixture.people.texts(ANN) == ["1: before"], "what came before it")
            await until(lambda: not emulator.state.updates.pending, "all are acknowledged")
            assert await fixture.hear("and now") == ["2: and now"]
            incidents = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(10))
            assert [one.text.partition(" (")[0] for one in incidents] == [f"telegram: update {odd} could not be read"]


# --- Edited messages -------------------------------------------------------------------------------------------------


async def test_an_edited_message_is_not_answered_again(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        said = await fixture.people.say(ANN, "helo")
        await fixture.people.until(lambda: fixture.people.texts(ANN) == ["1: helo"], "an answer")
        await fixture.people.correct(ANN, ANN, said.message_id, "hello")
        assert await fixture.hear("go on") == ["2: go on"]
