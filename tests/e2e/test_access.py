"""Access in a gateway that is wired up whole: what strangers, guests and admins see, and what nobody does."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.settings import GatewaySettings, PlatformAccount, Price
from everthread.domain.errors import PlatformUnavailable, SendUncertain
from everthread.domain.model import ChatType, SessionKey
from everthread.gateway import server as serving
from everthread.gateway.inbound import FOR_ADMINS
from everthread.lifecycle.pairing import APPROVED_TEXT, TERMINAL, Pairings
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

CODE = re.compile(r"\b[2-9A-HJKMNP-Z]{8}\b")
ADMIN = PlatformAccount("fake", admins=("root",))


def code_in(text: str) -> str:
    (code,) = CODE.findall(text)
    return code


def pairings(there: GatewayFixture) -> Pairings:
    return Pairings(there.runtime.store, there.runtime.clock)


async def shown(there: GatewayFixture, user: str = "42", chat: str = "42") -> str:
    """The code that a stranger who writes is shown."""
    before = len(there.platform.texts(chat))
    there.platform.say("let me in", user=user, chat=chat)
    await until(lambda: len(there.platform.texts(chat)) > before, "a code")
    # It is sent before it is written down for its whole time.
    await until(lambda: not there.gateway.pairing_offers._tasks)  # noqa: SLF001 - nothing else tells that it is done
    return code_in(there.platform.texts(chat)[-1])


async def taken(there: GatewayFixture, count: int) -> None:
    await until(lambda: len(there.platform.taken) >= count, "all of it was taken")
    await there.rest()


async def test_a_stranger_who_is_let_in_is_told_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # They are told at once, and not only when somebody looks for what was left behind.
    monkeypatch.setattr(serving, "SWEEP_S", 600.0)
    async with (
        ModelServer(lambda _: Say("Hello Anna.")) as model,
        gateway_fixture(tmp_path, model, account=ADMIN) as there,
    ):
        code = await shown(there)
        there.platform.say("hello?")
        there.platform.say("/help")
        await taken(there, 3)
        assert len(there.platform.texts()) == 1, "nothing more is said for an hour"
        there.platform.say(f"/pair {code}", user="root", chat="1")
        await until(lambda: there.platform.texts() and there.platform.texts()[-1] == APPROVED_TEXT)
        assert there.platform.texts("1") == ["fake:42 (42) has access now and was notified."]
        there.platform.say("hello!")
        await until(lambda: there.platform.texts()[-1] == "Hello Anna.")
        assert (await there.session()).owner == "fake:42"
        (turn,) = await there.turns()
        assert turn.user_text == "hello!", "what a stranger said is not kept"


async def test_a_stranger_in_a_group_hears_nothing_and_only_three_have_a_code(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, account=ADMIN) as there:
        for chat_type in (ChatType.GROUP, ChatType.CHANNEL, ChatType.THREAD):
            there.platform.say("hello", chat="g", chat_type=chat_type, thread="t")
        for number in range(3):
            await shown(there, f"user{number}", f"dm{number}")
        there.platform.say("hello", user="user3", chat="dm3")
        await taken(there, 7)
        there.platform.say("/status", user="root", chat="1")
        await until(lambda: there.platform.texts("1") != [])
        assert (there.platform.texts("g"), there.platform.texts("dm3")) == ([], [])
        assert there.gateway.inbound.rejected == 7
        assert not model.requests


async def test_what_was_approved_elsewhere_counts_at_once_and_makes_one_person_of_two_accounts(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",))
    gateway = GatewaySettings(links={"ann": ("fake:bert",)})
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as there,
    ):
        there.platform.say("/new Lisbon", user="bert", chat="7")
        await until(lambda: there.platform.texts("7") != [])
        there.platform.say("what to see?", user="bert", chat="7")
        await until(lambda: there.platform.texts("7")[-1] == "Hello.")
        code = await shown(there)
        await pairings(there).approve(code, scope=TERMINAL, owner="ann")
        there.platform.say("/resume Lisbon")
        await until(lambda: any("Lisbon" in text for text in there.platform.texts()[1:]))
        here, other = await there.session(), await there.session(SessionKey.parse("agent:main:fake:dm:7"))
        assert (here.id, here.owner) == (other.id, "ann")


async def test_a_code_that_could_not_be_sent_is_none_and_one_that_may_have_been_holds(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, account=ADMIN) as there:
        there.platform.faults.append(PlatformUnavailable("busy"))
        there.platform.say("hello")
        await until(lambda: not there.platform.faults and not there.gateway.pairing_offers._tasks)  # noqa: SLF001
        assert (await pairings(there).list_all()).waiting == ()
        await shown(there)
        there.platform.faults.append(SendUncertain("no answer"))
        there.platform.say("hello", user="bert", chat="7")
        await until(lambda: not there.platform.faults and not there.gateway.pairing_offers._tasks)  # noqa: SLF001
        assert [pairing.user for pairing in (await pairings(there).list_all()).waiting] == ["42", "bert"]


async def test_a_platform_that_hangs_on_a_code_holds_nobody_up(tmp_path: Path) -> None:
    class Hanging(FakePlatform):
        async def send(self, message: object) -> str:  # type: ignore[override]
            if "code" in message.text:  # type: ignore[attr-defined]
                await until(lambda: False)
            return await super().send(message)  # type: ignore[arg-type]

    platform = Hanging()
    account = PlatformAccount("fake", allow=("bert",))
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, platform, account=account) as there,
    ):
        there.platform.say("hello")
        there.platform.say("hello", user="bert", chat="7")
        await until(lambda: there.platform.texts("7") == ["Hello."])


async def test_no_code_is_logged_and_none_is_in_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, account=ADMIN) as there:
        there.platform.faults.append(PlatformUnavailable("busy: ABCDEFGH"))
        there.platform.say("hello")
        await until(lambda: not there.platform.faults and not there.gateway.pairing_offers._tasks)  # noqa: SLF001
        right, wrong = await shown(there), "WRQNGCDE"
        there.platform.say(f"/pair {wrong}", user="root", chat="1")
        await until(lambda: len(there.platform.texts("1")) == 1)
        there.platform.say(f"/pair {right}", user="root", chat="1")
        await until(lambda: len(there.platform.texts("1")) == 2)
        await there.rest()
        written = bytes_in(tmp_path)
    logged = "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records)
    assert "sent a pairing code" in logged
    assert "could not send a pairing code: PlatformUnavailable" in logged
    for code in (right, wrong, "ABCDEFGH"):
        assert code not in logged
        assert code.encode() not in written


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_pairing_is_for_admins_and_locks_out_whoever_guesses(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow=("bert",), admins=("root",))
    # Which commands are for admins is a setting; that this one is, is none.
    gateway = GatewaySettings(admin_commands=())
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, account=account, gateway=gateway) as there,
    ):
        code = await shown(there)
        there.platform.say(f"/pair {code}", user="bert", chat="7")
        await until(lambda: there.platform.texts("7") == [FOR_ADMINS])
        for number in range(6):
            there.platform.say("/pair WRONG", user="root", chat="1")
            await until(lambda number=number: len(there.platform.texts("1")) == number + 1)
        assert "No one waits with that code" in there.platform.texts("1")[0]
        assert all("Too many wrong codes" in text for text in there.platform.texts("1")[4:])
        there.platform.say(f"/pair {code}", user="root", chat="1")
        await until(lambda: len(there.platform.texts("1")) == 7)
        assert "Too many wrong codes" in there.platform.texts("1")[6]
        assert (await pairings(there).list_all()).guests == ()


async def test_a_pairing_that_is_delivered_twice_is_carried_out_once(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, account=ADMIN) as there:
        code = await shown(there)
        update = there.platform.say(f"/pair {code}", user="root", chat="1")
        there.platform.deliver(update)
        await taken(there, 3)
        await until(lambda: len(there.platform.texts("1")) == 1)
        wrong = await there.runtime.store.read(lambda uow: uow.access.wrong_codes("fake:root"))
        assert wrong is None


async def test_help_lists_what_somebody_may_use(tmp_path: Path) -> None:
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
        assert "nothing to leave" in there.platform.texts("7")[3]


async def test_too_much_at_once_is_dropped_and_told_of_once_but_stop_and_help_are_heard(tmp_path: Path) -> None:
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
        told = [text for text in there.platform.texts() if "too much at once" in text]
        assert len(told) == 1
        assert re.search(r"write again in (29|30) seconds", told[0])
        assert [turn.user_text for turn in await there.turns()] == ["message 0", "message 1"]
        assert (await there.session()).title != "Lisbon"
        assert any("/new [title]" in text for text in there.platform.texts())
        assert len(there.platform.texts()) == 5, "two answers, the notice, /help and /stop"
        assert there.platform.texts("7") == ["Hello."]


async def test_that_a_platform_repeats_itself_is_not_held_against_a_person(tmp_path: Path) -> None:
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
        await until(lambda: "too much at once" in there.platform.texts()[-1])


async def test_a_guest_may_spend_less_than_the_person_at_the_machine(tmp_path: Path) -> None:
    gateway = GatewaySettings(spend_per_day=0.0, links={"me": ("fake:bert",)})
    prices = {"stub/one": Price(1.0, 1.0)}
    async with (
        ModelServer(lambda _: Say("Hello.")) as model,
        gateway_fixture(tmp_path, model, gateway=gateway, prices=prices) as there,
    ):
        there.platform.say("hello")
        there.platform.say("hello", user="bert", chat="7")
        await until(lambda: there.platform.texts("7") == ["Hello."])
        await until(lambda: there.platform.texts() != [])
        assert "the limit of $0 in 24 hours would be passed" in there.platform.texts()[0]
        there.platform.say("/usage")
        await until(lambda: len(there.platform.texts()) == 2)
        assert "The limit is $0.00 in 24 hours" in there.platform.texts()[1]
