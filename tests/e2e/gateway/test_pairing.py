"""Pairing codes: offered to strangers, approved by admins."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.schema import GatewaySettings, PlatformAccount
from everthread.domain.errors import PlatformUnavailable, SendUncertain
from everthread.domain.model import ChatType, SessionKey
from everthread.domain.pairing import PLATFORM_CODES_MAX
from everthread.gateway import server as serving
from everthread.gateway.access import FOR_ADMINS
from everthread.lifecycle.pairing import APPROVED_TEXT, TERMINAL, Pairings
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

CODE = re.compile(r"\b[2-9A-HJKMNP-Z]{8}\b")
ADMIN = PlatformAccount("fake", admins=("root",))


def code_in(text: str) -> str:
    (code,) = CODE.findall(text)
    return code


async def shown(fixture: GatewayFixture, user: str = "42", chat: str = "42") -> str:
    """Send a message as a stranger and return the pairing code in the reply."""
    before = len(fixture.platform.texts(chat))
    fixture.platform.say("let me in", user=user, chat=chat)
    await until(lambda: len(fixture.platform.texts(chat)) > before, "a code")
    # The code is sent before its full validity is stored.
    await until(lambda: not fixture.gateway.pairing_offers._tasks)  # noqa: SLF001 - no public signal of completion
    return code_in(fixture.platform.texts(chat)[-1])


async def taken(fixture: GatewayFixture, count: int) -> None:
    await until(lambda: len(fixture.platform.taken) >= count, "all of it was taken")
    await fixture.rest()


def pairings(fixture: GatewayFixture) -> Pairings:
    return Pairings(fixture.runtime.store, fixture.runtime.clock)


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_paired_stranger_is_notified_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The notification must be immediate and not depend on the periodic sweep.
    monkeypatch.setattr(serving, "SWEEP_S", 600.0)
    async with (
        ModelServer(lambda _: Say("Hello Anna.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as fixture,
    ):
        code = await shown(fixture)
        fixture.platform.say("hello?")
        fixture.platform.say("/help")
        await taken(fixture, 3)
        assert len(fixture.platform.texts()) == 1, "a stranger gets one reply per hour"
        fixture.platform.say(f"/pair {code}", user="root", chat="1")
        await until(lambda: fixture.platform.texts() and fixture.platform.texts()[-1] == APPROVED_TEXT)
        assert fixture.platform.texts("1") == ["fake:42 (42) has access now and was notified."]
        fixture.platform.say("hello!")
        await until(lambda: fixture.platform.texts()[-1] == "Hello Anna.")
        assert (await fixture.session()).owner == "fake:42"
        (turn,) = await fixture.turns()
        assert turn.user_text == "hello!", "messages sent before the pairing must not be stored"


async def test_strangers_in_groups_get_no_code_and_thirty_at_most_have_one(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as fixture,
    ):
        for chat_type in (ChatType.GROUP, ChatType.CHANNEL, ChatType.THREAD):
            fixture.platform.say("hello", chat="g", chat_type=chat_type, thread="t")
        for number in range(PLATFORM_CODES_MAX):
            await shown(fixture, f"user{number}", f"dm{number}")
        fixture.platform.say("hello", user="late", chat="late")
        await taken(fixture, PLATFORM_CODES_MAX + 4)
        fixture.platform.say("/status", user="root", chat="1")
        await until(lambda: fixture.platform.texts("1") != [])
        assert (fixture.platform.texts("g"), fixture.platform.texts("late")) == ([], [])
        assert fixture.gateway.inbound.rejected == PLATFORM_CODES_MAX + 4
        assert not model.requests


async def test_an_approval_by_another_process_takes_effect_at_once_and_links_accounts(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",))
    gateway = GatewaySettings(links={"ann": ("fake:bert",)})
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as fixture,
    ):
        fixture.platform.say("/new Lisbon", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7") != [])
        fixture.platform.say("what to see?", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7")[-1] == "Hello.")
        code = await shown(fixture)
        await pairings(fixture).approve(code, scope=TERMINAL, owner="ann")
        fixture.platform.say("/resume Lisbon")
        await until(lambda: any("Lisbon" in text for text in fixture.platform.texts()[1:]))
        here, other = await fixture.session(), await fixture.session(SessionKey.parse("agent:main:fake:dm:7"))
        assert (here.id, here.owner) == (other.id, "ann")


async def test_an_unsent_code_is_void_and_an_uncertain_one_is_valid(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as fixture,
    ):
        fixture.platform.faults.append(PlatformUnavailable("busy"))
        fixture.platform.say("hello")
        await until(lambda: not fixture.platform.faults and not fixture.gateway.pairing_offers._tasks)  # noqa: SLF001
        assert (await pairings(fixture).list_all()).waiting == ()
        await shown(fixture)
        fixture.platform.faults.append(SendUncertain("no answer"))
        fixture.platform.say("hello", user="bert", chat="7")
        await until(lambda: not fixture.platform.faults and not fixture.gateway.pairing_offers._tasks)  # noqa: SLF001
        assert [pairing.user for pairing in (await pairings(fixture).list_all()).waiting] == ["42", "bert"]


async def test_a_platform_that_hangs_on_a_code_blocks_no_other_chat(tmp_path: Path) -> None:
    class Hanging(FakePlatform):
        async def send(self, message: object) -> str:  # type: ignore[override]
            if "code" in message.text:  # type: ignore[attr-defined]
                await until(lambda: False)
            return await super().send(message)  # type: ignore[arg-type]

    platform = Hanging()
    account = PlatformAccount("fake", allow=("bert",))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, platform, account=account) as fixture,
    ):
        fixture.platform.say("hello")
        fixture.platform.say("hello", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7") == ["Hello."])


async def test_codes_are_neither_logged_nor_stored_in_plain_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as fixture,
    ):
        fixture.platform.faults.append(PlatformUnavailable("busy: ABCDEFGH"))
        fixture.platform.say("hello")
        await until(lambda: not fixture.platform.faults and not fixture.gateway.pairing_offers._tasks)  # noqa: SLF001
        right, wrong = await shown(fixture), "WRQNGCDE"
        fixture.platform.say(f"/pair {wrong}", user="root", chat="1")
        await until(lambda: len(fixture.platform.texts("1")) == 1)
        fixture.platform.say(f"/pair {right}", user="root", chat="1")
        await until(lambda: len(fixture.platform.texts("1")) == 2)
        await fixture.rest()
        written = bytes_in(tmp_path)
    logged = "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records)
    assert "sent a pairing code" in logged
    assert "could not send a pairing code: PlatformUnavailable" in logged
    for code in (right, wrong, "ABCDEFGH"):
        assert code not in logged
        assert code.encode() not in written


async def test_only_admins_pair_and_wrong_codes_lock_out(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",), admins=("root",))
    # /pair is for admins only, regardless of `admin_commands`.
    gateway = GatewaySettings(admin_commands=())
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as fixture,
    ):
        code = await shown(fixture)
        fixture.platform.say(f"/pair {code}", user="bert", chat="7")
        await until(lambda: fixture.platform.texts("7") == [FOR_ADMINS])
        for number in range(6):
            fixture.platform.say("/pair WRONG", user="root", chat="1")
            await until(lambda number=number: len(fixture.platform.texts("1")) == number + 1)
        assert "No user has that code" in fixture.platform.texts("1")[0]
        assert all("Too many wrong codes" in text for text in fixture.platform.texts("1")[4:])
        fixture.platform.say(f"/pair {code}", user="root", chat="1")
        await until(lambda: len(fixture.platform.texts("1")) == 7)
        assert "Too many wrong codes" in fixture.platform.texts("1")[6]
        assert (await pairings(fixture).list_all()).guests == ()


async def test_a_repeated_pairing_command_runs_once(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as fixture,
    ):
        code = await shown(fixture)
        update = fixture.platform.say(f"/pair {code}", user="root", chat="1")
        fixture.platform.deliver(update)
        await taken(fixture, 3)
        await until(lambda: len(fixture.platform.texts("1")) == 1)
        wrong = await fixture.runtime.store.read(lambda uow: uow.access.wrong_codes("fake:root"))
        assert wrong is None
