"""Malformed updates: none of them blocks the platform or another user."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.gateway import GatewayFixture, gateway_fixture
from tests.runtime import until

from everthread.config.schema import PlatformAccount
from everthread.domain.backoff import Backoff
from everthread.domain.errors import DiskFull, PlatformUnavailable, StoreBusy, StoreError
from everthread.domain.model import ChatType
from everthread.gateway import server as serving
from everthread.ports.platform import Media, Quoted, Update
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

HALF = "\ud83d"
PLAIN = Update("fake", "bot", "1", "42", ChatType.DM, "42", "hello")


async def _still_served(fixture: GatewayFixture) -> None:
    fixture.platform.say("are you there?", chat="7", update_id="last")
    await until(lambda: fixture.platform.texts("7") == ["Yes."], "an answer to the next one")


@pytest.mark.parametrize(
    "update",
    [
        replace(PLAIN, text=f"half {HALF}"),
        *(
            replace(PLAIN, text=f"/{name} {HALF}")
            for name in ("new", "title", "queue", "steer", "help", "nothing", "pair")
        ),
        replace(PLAIN, text=f"/resume {HALF}\x00"),
        replace(PLAIN, update_id=HALF),
        replace(PLAIN, account=HALF),
        replace(PLAIN, text="/help", update_id=HALF),
        replace(PLAIN, text="/queue something", account=HALF),
        replace(PLAIN, text="/help", thread=HALF, chat_type=ChatType.THREAD),
        replace(PLAIN, text="/new", user=HALF, chat_type=ChatType.GROUP),
        replace(PLAIN, user=HALF),
        replace(PLAIN, chat=HALF),
        replace(PLAIN, chat=""),
        replace(PLAIN, user=""),
        replace(PLAIN, chat="x" * 100_000),
        replace(PLAIN, user="x" * 100_000),
        replace(PLAIN, update_id="x" * 1_000_000),
        replace(PLAIN, chat="a:b%3A", user="a:b%", chat_type=ChatType.GROUP),
        replace(PLAIN, thread=HALF, chat_type=ChatType.THREAD),
        replace(PLAIN, user_name=HALF, chat_type=ChatType.THREAD),
        replace(PLAIN, chat="x" * 250, thread="y" * 250, chat_type=ChatType.THREAD),
        replace(PLAIN, text="", media=(Media("image", HALF, HALF),)),
        replace(PLAIN, reply_to=Quoted(HALF)),
        replace(PLAIN, text="\x00"),
        replace(PLAIN, text="x" * 1_000_000),
        replace(PLAIN, text="/" + "x" * 1_000_000),
        replace(PLAIN, text="/new " + "x" * 1_000_000),
        replace(PLAIN, text="x" * 20_000_000),
    ],
    ids=lambda update: repr(update)[40:110],
)
async def test_a_malformed_update_is_accepted_or_dropped_and_the_next_is_answered(
    tmp_path: Path, update: Update
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        fixture.platform.deliver(update)
        await _still_served(fixture)
        await fixture.rest()
        assert fixture.gateway.states["fake"].problem == ""


async def test_an_update_that_causes_an_internal_error_is_dropped_and_the_next_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        accept = fixture.gateway.lifecycle.accept

        async def mistaken(inbound: Any, **more: Any) -> Any:
            if inbound.text == "this one":
                raise ZeroDivisionError
            return await accept(inbound, **more)

        monkeypatch.setattr(fixture.gateway.lifecycle, "accept", mistaken)
        fixture.platform.say("this one")
        await _still_served(fixture)


@pytest.mark.parametrize("text", ["/queue something", "/steer something", "/new", "something"])
@pytest.mark.parametrize(
    "error", [StoreBusy("another program holds it"), DiskFull("the disk is full")], ids=["busy", "full"]
)
async def test_an_update_that_cannot_be_stored_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: StoreError
) -> None:
    monkeypatch.setattr(serving, "RESTART", Backoff(0.01, 15.0))
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        accept, tries = fixture.gateway.lifecycle.accept, 0

        async def busy_first(inbound: Any, **more: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise error
            return await accept(inbound, **more)

        monkeypatch.setattr(fixture.gateway.lifecycle, "accept", busy_first)
        fixture.platform.say(text)
        await until(lambda: tries > 1, "that it is delivered again")
        await until(lambda: fixture.platform.texts() != [], "an answer")
        await fixture.rest()
        assert not any("lock" in said for said in fixture.platform.texts())
        assert ("Yes." in fixture.platform.texts()) is (text != "/new")


async def test_updates_without_an_id_are_not_deduplicated(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model) as fixture:
        for count in (1, 2):
            fixture.platform.deliver(replace(PLAIN, text="/help", update_id=""))
            await until(lambda count=count: len(fixture.platform.texts()) == count, "what there is")


async def test_in_a_shared_group_an_empty_message_is_not_answered(tmp_path: Path) -> None:
    account = PlatformAccount("fake", allow_all=True, groups="shared")
    group = replace(PLAIN, chat="99", chat_type=ChatType.GROUP, user="7", user_name="Bert")
    async with (
        ModelServer(lambda _: Say("Yes.")) as model,
        gateway_fixture(tmp_path, model, account=account) as fixture,
    ):
        fixture.platform.deliver(replace(group, text=" ", update_id="2"))
        fixture.platform.deliver(replace(group, text="hello", update_id="3"))
        await until(lambda: fixture.platform.texts("99") != [])
        await fixture.rest()
        assert fixture.platform.texts("99") == ["Yes."]


async def test_the_restart_backoff_is_reset_after_a_long_healthy_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RESTART", Backoff(0.01, 0.5))

    class Shaky(FakePlatform):
        runs = 0

        async def run(self, take: Any) -> None:
            self.runs += 1
            if self.runs < 5:
                raise PlatformUnavailable("down")
            if self.runs == 5:
                await asyncio.sleep(0.6)
                raise PlatformUnavailable("down for once")
            await super().run(take)

    pauses: list[float] = []
    platform = Shaky()
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        sleep = fixture.clock.sleep

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(seconds)

        monkeypatch.setattr(fixture.clock, "sleep", noted)
        await _still_served(fixture)
        assert platform.runs == 6
        assert [pause for pause in pauses if pause in (0.01, 0.02, 0.04, 0.08, 0.16)] == [0.01, 0.02, 0.04, 0.08, 0.01]


async def test_a_retry_delay_of_the_platform_replaces_the_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RESTART", Backoff(0.01, 15.0))

    class Busy(FakePlatform):
        runs = 0

        async def run(self, take: Any) -> None:
            self.runs += 1
            if self.runs < 5:
                raise PlatformUnavailable("too much at once", 0.25)
            await super().run(take)

    pauses: list[float] = []
    platform = Busy()
    async with ModelServer(lambda _: Say("Yes.")) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        sleep = fixture.clock.sleep

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(seconds)

        monkeypatch.setattr(fixture.clock, "sleep", noted)
        await _still_served(fixture)
        assert platform.runs == 5
        assert [pause for pause in pauses if pause in (0.01, 0.02, 0.04, 0.08, 0.25)] == [0.25] * 4
