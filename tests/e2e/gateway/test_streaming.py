"""Live replies: shown while they are written, and complete once in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform
from tests.faults.fixture import Scene, answer_to
from tests.gateway import ANNA, gateway_fixture
from tests.runtime import CoreFixture, until

from everthread.agent.events import TextWritten
from everthread.domain.backoff import Backoff
from everthread.domain.boundary import New
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.model import Inbound, ReplyState
from everthread.gateway import outbox as delivery
from everthread.gateway import streaming
from everthread.gateway.delivery_check import DeliveryCheck
from everthread.ports.platform import Address, Button, Outbound
from everthread.testing.loopback import protocol as wire
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

WORDS = " ".join(f"word{n}" for n in range(24))
SLOW = Say(WORDS, chunks=24, delay_s=0.05)
"""Whole after 1.2 s; the first that is shown of it goes out after 0.8 s."""


class Sluggish(FakePlatform):
    """Platform with slow sends and edits; edits may fail."""

    def __init__(self, *, send_s: float = 0.0, edit_s: float = 0.0, **capabilities: object) -> None:
        super().__init__(**{"edits": True, "edit_every_s": 0.05, **capabilities})  # type: ignore[arg-type]
        self.send_s, self.edit_s = send_s, edit_s
        self.edit_faults: list[Exception] = []

    async def send(self, message: Outbound) -> str:
        sent = await super().send(message)
        await asyncio.sleep(self.send_s)
        return sent

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        await asyncio.sleep(self.edit_s)
        if self.edit_faults:
            raise self.edit_faults.pop(0)
        await super().edit(to, message_id, text, buttons)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BACKOFF", Backoff(0.01, 60.0))
    monkeypatch.setattr(delivery, "STORE_RETRY_S", 0.02)


class Countable(Sluggish):
    """Slow platform with a message search that counts its calls."""

    def __init__(self, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.finder = self
        self.asked = 0

    def know(self, to: Address, message_id: str) -> None: ...

    def newest(self, to: Address) -> str:
        return "1"

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        self.asked += 1
        return None

    async def delete(self, to: Address, message_id: str) -> None: ...


class Losing(FakePlatform):
    """Platform that shows the first message but raises `SendUncertain` for it."""

    async def send(self, message: Outbound) -> str:
        message_id = await super().send(message)
        if message_id == "0":
            raise SendUncertain("the connection broke off")
        return message_id


async def test_a_quick_answer_shows_no_typing_indicator(tmp_path: Path) -> None:
    platform = FakePlatform(typing=True)
    async with ModelServer(lambda _: Say("Hello.")) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        for number in range(1, 6):
            fixture.platform.say("hello")
            await until(lambda number=number: len(fixture.platform.texts()) == number)
        await fixture.rest()
        # On a busy machine a single answer may take longer.
        assert platform.typing < 5


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path) -> None:
    platform = FakePlatform(edits=True, edit_every_s=0.05, typing=True)
    script = lambda _: Say(" ".join(f"word{n}" for n in range(40)), chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        fixture.platform.say("tell me")
        await until(lambda: fixture.platform.texts() and fixture.platform.texts()[0].endswith("word39"))
        await fixture.rest()
        assert len(fixture.platform.sent) == 1
        assert len(platform.edits) > 1
        assert platform.typing


async def test_a_platform_without_typing_indicator_gets_one_message(tmp_path: Path) -> None:
    platform = Sluggish(send_s=0.2, typing=False)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await fixture.rest()
        assert platform.texts() == [WORDS]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_answer_completed_while_its_beginning_is_sent_is_seen_once(tmp_path: Path, idempotent: bool) -> None:
    platform = Sluggish(send_s=1.0, typing=True, idempotent_send=idempotent)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: platform.texts() != [], "a beginning")
        for _ in range(200):
            # The periodic sweep must not send a reply that is being streamed.
            await fixture.gateway.outbox.sweep()
            await asyncio.sleep(0.005)
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await fixture.rest()
        assert platform.texts() == [WORDS]


async def test_a_platform_failure_at_the_end_of_an_answer_blocks_nothing(tmp_path: Path) -> None:
    platform = Sluggish(edit_s=0.6, typing=True)
    platform.edit_faults = [PlatformUnavailable("not so fast")] * 2
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await fixture.rest()
        platform.edit_s = 0.0
        platform.say("and again")
        await until(lambda: platform.texts() == [WORDS, WORDS], "the next answer")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_deleted_live_reply_is_sent_as_a_new_message(tmp_path: Path, idempotent: bool) -> None:
    platform = Sluggish(typing=True, edit_every_s=60.0, idempotent_send=idempotent)
    platform.edit_faults = [PlatformRefused("there is no such message")]
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await fixture.rest()
        assert len(platform.sent) == 2


async def test_an_edit_with_an_unknown_result_is_repeated(tmp_path: Path) -> None:
    platform = Sluggish(typing=True, edit_every_s=60.0)
    platform.edit_faults = [SendUncertain("the connection broke")]
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: platform.texts() == [WORDS], "the whole answer")
        await fixture.rest()


@pytest.mark.parametrize("send_s", [0.0, 0.3])
async def test_a_released_turn_continues_in_the_same_message(tmp_path: Path, send_s: float) -> None:
    platform = Sluggish(typing=True, send_s=send_s)
    async with ModelServer(lambda _: Say(WORDS, chunks=24, delay_s=0.1)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0):
            platform.say("tell me")
            await until(lambda: platform.texts() != [], "a beginning")
        # The next process continues the turn, so the message must not be marked as stopped.
        assert "(stopped)" not in platform.texts()[0]
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await fixture.rest()
        assert platform.texts() == [WORDS]


async def test_a_platform_that_hangs_on_edits_does_not_block_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "END_S_MAX", 0.1)
    platform = Sluggish(send_s=3600.0, typing=True)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
        platform.say("tell me")
        await until(lambda: platform.texts() != [], "a beginning")
        platform.send_s = 0.0
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await fixture.rest()


async def test_the_draft_of_a_stopped_turn_is_not_sent(tmp_path: Path) -> None:
    platform = Sluggish(typing=True)
    async with ModelServer(lambda _: SLOW) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
            platform.say("tell me")
            await until(lambda: platform.texts() != [], "a beginning")
            await fixture.runtime.lifecycle.cross(ANNA, New(), owner="fake:42")
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            left = await fixture.runtime.store.read(lambda uow: uow.outbox.replies(ReplyState.DRAFT, 9))
            assert left == ()


async def test_nothing_more_is_shown_after_a_boundary_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FIRST_S", 0.01)
    platform = FakePlatform(edits=True, edit_every_s=0.01)
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as other:
        await core.lifecycle.accept(Inbound(ANNA, "anna", "tell me"))
        claim = await core.lifecycle.begin_turn(ANNA)
        assert claim is not None
        live = streaming.LiveReply(
            platform, core.lifecycle, core.clock, DeliveryCheck(core.store, core.clock), edits=True, since=0.0
        )
        live.begin(claim)
        live.handle(TextWritten("one"))
        await until(lambda: platform.texts() != [], "a beginning")
        live.handle(TextWritten(" two"))
        await until(lambda: platform.edits, "an edit")
        await other.lifecycle.cross(ANNA, New(), owner="anna")
        before = list(platform.edits)
        live.handle(TextWritten(" three"))
        await until(lambda: all(task.done() for task in live._tasks), "the end of the live reply")  # noqa: SLF001
        assert platform.edits == before
        await live.end(withheld=True)
        assert platform.texts() == ["one two\n(stopped)"]


async def test_a_shutdown_during_the_first_send_leaves_one_message(tmp_path: Path) -> None:
    platform = Sluggish(typing=True, send_s=0.6)
    async with ModelServer(lambda _: SLOW) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
            platform.say("tell me")
            await until(lambda: fixture.gateway.worker.running)
            await until(lambda: not fixture.gateway.worker.running, "that it is committed")
            assert platform.texts() != []
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await fixture.rest()
        assert platform.texts() == [WORDS]


async def test_a_beginning_that_was_not_sent_is_not_searched_for(tmp_path: Path) -> None:
    platform = Countable(typing=True)
    platform.faults.append(PlatformUnavailable("too much at once"))
    async with ModelServer(lambda _: Say(WORDS, chunks=24, delay_s=0.15)) as model:
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            platform.say("tell me")
            await until(lambda: platform.edits != [], "it was begun at the second attempt")
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await fixture.rest()
        assert platform.texts() == [WORDS]
        assert platform.asked == 0, "a rate-limited gateway must not search for messages"


async def test_the_beginning_of_a_dead_process_is_searched_for_until_its_state_is_known(tmp_path: Path) -> None:
    platform, find = Countable(typing=True), Countable.find

    async def find_later(*rest: Any) -> str | None:
        found = await find(platform, *rest)
        if platform.asked == 1:
            raise PlatformUnavailable("too much at once")
        return found

    platform.find = find_later  # type: ignore[method-assign]
    platform.faults.append(SendUncertain("the connection broke"))
    async with ModelServer(lambda _: Say(WORDS, chunks=24, delay_s=0.15)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0):
            platform.say("tell me")
            await until(lambda: not platform.faults, "a beginning may be out")
        async with gateway_fixture(tmp_path, model, platform) as fixture:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await fixture.rest()
        assert platform.texts() == [WORDS]
        assert platform.asked > 1


async def test_a_beginning_with_an_unknown_result_is_reported(tmp_path: Path) -> None:
    platform = Losing(edits=True, edit_every_s=0.05)
    script = lambda _: Say("word " * 40, chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, gateway_fixture(tmp_path, model, platform) as fixture:
        platform.say("tell me")
        await until(lambda: len(platform.texts()) == 2)
        await fixture.rest()
        beginning, answer = platform.texts()
        assert beginning.endswith("…")
        assert answer.strip() == ("word " * 40).strip(), "the answer must be sent once and completely"
        incidents = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(9))
        assert ["may be a message of its own in fake chat 42" in one.text for one in incidents] == [True]


SIX_WORDS = "one two three four five six"


@pytest.mark.timeout(90)
async def test_a_beginning_with_a_lost_response_is_finished_over_loopback(tmp_path: Path) -> None:
    async with Scene(tmp_path / "scene", model=["--delay-ms=300", "--chunks=8"]) as scene:
        await scene.start(edits=True)
        await scene.people.fault(wire.Fault("drop_after", "send"))
        await scene.people.say("c1", SIX_WORDS)
        await scene.people.until(lambda: scene.people.texts("c1") == [answer_to(SIX_WORDS)], "the whole answer")
        first = scene.people.answers("c1")[0]
        assert first.text.endswith("…"), "the test needs a partial first message"
