"""Ends and waits at a key: a stop in good time, a clock that is put forward or back, a turn in another process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import GatewaySettings, PlatformAccount
from everthread.domain.boundary import Resume
from everthread.domain.errors import SendUncertain
from everthread.domain.model import Inbound, Message, Role, SessionKey, TurnStatus
from everthread.domain.pairing import PairedAccount
from everthread.ports.platform import Outbound
from everthread.testing.model_server.replies import End, Say
from everthread.testing.model_server.server import ModelServer

CLI = SessionKey.parse("agent:main:cli:dm:desk")


class Gate:
    """Holds up the next turn that begins: before it is written down, or after."""

    def __init__(self, there: GatewayFixture, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
        self.there_is_one, self.goes = asyncio.Event(), asyncio.Event()
        begin = there.gateway.lifecycle.begin_turn

        async def held_up(key: SessionKey) -> Any:
            ticket = await begin(key) if after else None
            self.there_is_one.set()
            await self.goes.wait()
            return ticket if after else await begin(key)

        monkeypatch.setattr(there.gateway.lifecycle, "begin_turn", held_up)


@pytest.mark.parametrize("after", [False, True])
async def test_a_stop_just_before_a_turn_begins_stops_that_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        await there.hear("hello")
        gate, asked = Gate(there, monkeypatch, after=after), len(model.requests)
        there.platform.say("wipe the disk")
        await gate.there_is_one.wait()
        there.platform.say("/stop")
        await until(lambda: any("Stopped before" in text for text in there.platform.texts()))
        gate.goes.set()
        await there.rest()
        assert len(model.requests) == asked, "the model was never asked"
        *_, turn = await there.turns()
        assert (turn.user_text, turn.status) == ("wipe the disk", TurnStatus.INTERRUPTED)
        assert (await there.hear("and now?")) == ["Yes."], "what comes after it is answered"


async def test_a_stop_with_nothing_to_stop_says_so_and_stops_nothing_later(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        await there.hear("hello")
        there.platform.say("/stop")
        there.platform.say("go on")
        await until(lambda: len(there.platform.texts()) == 3)
        assert there.platform.texts()[1:] == ["Nothing is running here.", "Yes."]


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
async def test_a_clock_that_jumps_neither_cuts_an_end_short_nor_draws_it_out(tmp_path: Path, ahead_s: float) -> None:
    replies = iter([Say("slowly " * 10, chunks=10, delay_s=0.1), Say("never", end=End.STALL)])
    platform = FakePlatform()
    async with ModelServer(lambda _: next(replies)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
            platform.say("tell me")
            await until(lambda: there.gateway.worker.running)
            ending = asyncio.ensure_future(there.gateway.stop(5.0))
            await asyncio.sleep(0.1)
            there.clock.ahead_s += ahead_s
            await ending
            assert len(platform.texts()) == 1, "the answer could end"
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
            platform.say("and then?")
            await until(lambda: there.gateway.worker.running)
            ending, began = asyncio.ensure_future(there.gateway.stop(0.5)), time.monotonic()
            await asyncio.sleep(0.1)
            there.clock.ahead_s += ahead_s
            await ending
            assert time.monotonic() - began < 3.0


async def test_a_turn_of_another_process_is_waited_for_without_trying_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        await there.hear("hello")
        session, owner = await there.session(), (await there.session()).owner
        async with Runtime(replace(there.runtime.settings, platforms={}), clock=there.clock) as other:
            await other.start()
            await other.lifecycle.cross(CLI, Resume(session.id), owner=owner)
            await other.lifecycle.accept(Inbound(CLI, owner, "from the terminal"))
            ticket = await other.lifecycle.begin_turn(CLI)
            assert ticket is not None
            tries, begin = 0, there.gateway.lifecycle.begin_turn

            async def counted(key: SessionKey) -> Any:
                nonlocal tries
                tries += 1
                return await begin(key)

            monkeypatch.setattr(there.gateway.lifecycle, "begin_turn", counted)
            there.platform.say("and from here")
            await until(lambda: tries)
            await asyncio.sleep(2.0)
            assert tries == 1
            await other.lifecycle.commit_turn(ticket, [Message(Role.USER, "from the terminal")], None)
            committed_at = time.monotonic()
            await until(lambda: there.platform.texts() == ["Yes.", "Yes."])
            assert time.monotonic() - committed_at < 2.0


class Losing(FakePlatform):
    """The first message is shown, and nothing is heard of it."""

    async def send(self, message: Outbound) -> str:
        message_id = await super().send(message)
        if message_id == "0":
            raise SendUncertain("the connection broke off")
        return message_id


async def test_a_beginning_of_which_nothing_was_heard_is_shown_as_such(tmp_path: Path) -> None:
    platform = Losing(edits=True, edit_every_s=0.05)
    script = lambda _: Say("word " * 40, chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: len(platform.texts()) == 2)
        await there.rest()
        beginning, answer = platform.texts()
        assert beginning.endswith("…")
        assert answer.strip() == ("word " * 40).strip(), "the answer is out once, and whole"
        incidents = await there.runtime.store.read(lambda uow: uow.leases.incidents(9))
        assert ["may stand beside it in fake chat 42" in one.text for one in incidents] == [True]


async def test_a_handoff_leads_only_to_accounts_that_are_there_and_may_write(tmp_path: Path) -> None:
    platform, other = FakePlatform(), FakePlatform("other")
    links = {"anna": ("fake:42", "other:7")}
    async with ModelServer(lambda _: Say("Yes.")) as model:
        async with gateway_fixture(
            tmp_path, model, platform, others=(other,), gateway=GatewaySettings(links=links)
        ) as there:
            await there.hear("hello")
            other.say("hello", chat="chat-7", user="7")
            await until(lambda: other.texts("chat-7"))
            await there.rest()
        closed = PlatformAccount("fake", allow=("42",))
        for platforms, account, guests, is_offered in (
            ((), closed, (), False),
            ((other,), closed, (), False),
            ((other,), closed, (PairedAccount("other", "7", "bea", "Bea", 1.0),), True),
            ((other,), PlatformAccount("fake", allow=("42", "7")), (), True),
        ):
            async with gateway_fixture(
                tmp_path, model, platform, others=platforms, account=account, gateway=GatewaySettings(links=links)
            ) as there:
                for guest in guests:
                    await there.runtime.store.write(lambda uow, guest=guest: uow.access.add_guest(guest))
                (said,) = await there.hear("/handoff nowhere")
                assert ("Your platforms: other" in said) == is_offered, said
                (said,) = await there.hear("/handoff other")
                assert ("continues on other" in said or "already" in said) == is_offered, said
                for guest in guests:
                    await there.runtime.store.write(
                        lambda uow, guest=guest: uow.access.remove_guest(guest.platform, guest.user)
                    )


async def test_a_stop_means_what_was_said_before_it(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as there:
        await there.hear("hello")
        owner = (await there.session()).owner
        row, _ = await there.gateway.lifecycle.accept(Inbound(ANNA, owner, "go on"))
        assert not await there.gateway.worker.stop_next(ANNA, row.id - 1)
        assert await there.gateway.worker.stop_next(ANNA, row.id + 1)
        await there.rest()
        *_, turn = await there.turns()
        assert (turn.user_text, turn.status) == ("go on", TurnStatus.INTERRUPTED)
        assert not await there.gateway.worker.stop_next(ANNA, row.id + 1)
        assert await there.hear("and now?") == ["Yes."]
