"""What people see of an answer while it is written, and that in the end they see it whole, once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform
from tests.gateway import ANNA, gateway_fixture
from tests.runtime import until

from everthread.domain.backoff import Backoff
from everthread.domain.boundary import New
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.domain.model import ReplyState
from everthread.gateway import outbox as delivery
from everthread.gateway import streaming
from everthread.ports.platform import Address, Button, Outbound
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

WORDS = " ".join(f"word{n}" for n in range(24))
SLOW = Say(WORDS, chunks=24, delay_s=0.05)
"""Whole after 1.2 s; the first that is shown of it goes out after 0.8 s."""


class Sluggish(FakePlatform):
    """Takes its time to send or to edit; edits may fail in the end."""

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


async def test_where_nobody_is_shown_typing_one_message_is_begun_as_well(tmp_path: Path) -> None:
    platform = Sluggish(send_s=0.2, typing=False)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await there.rest()
        assert platform.texts() == [WORDS]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_answer_that_is_whole_before_its_beginning_is_out_is_seen_once(
    tmp_path: Path, idempotent: bool
) -> None:
    platform = Sluggish(send_s=1.0, typing=True, idempotent_send=idempotent)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: platform.texts() != [], "a beginning")
        for _ in range(200):
            # As it comes every few seconds: what is being shown is not to be sent besides.
            await there.gateway.outbox.sweep()
            await asyncio.sleep(0.005)
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await there.rest()
        assert platform.texts() == [WORDS]


async def test_a_platform_that_fails_as_an_answer_ends_holds_nobody_up(tmp_path: Path) -> None:
    platform = Sluggish(edit_s=0.6, typing=True)
    platform.edit_faults = [PlatformUnavailable("not so fast")] * 2
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await there.rest()
        platform.edit_s = 0.0
        platform.say("and again")
        await until(lambda: platform.texts() == [WORDS, WORDS], "the next answer")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_if_somebody_deletes_what_was_begun_the_answer_is_sent_anew(tmp_path: Path, idempotent: bool) -> None:
    platform = Sluggish(typing=True, edit_every_s=60.0, idempotent_send=idempotent)
    platform.edit_faults = [PlatformRefused("there is no such message")]
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await there.rest()
        assert len(platform.sent) == 2


async def test_an_edit_that_nobody_can_tell_of_is_simply_done_again(tmp_path: Path) -> None:
    platform = Sluggish(typing=True, edit_every_s=60.0)
    platform.edit_faults = [SendUncertain("the connection broke")]
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform) as there:
        platform.say("tell me")
        await until(lambda: platform.texts() == [WORDS], "the whole answer")
        await there.rest()


@pytest.mark.parametrize("send_s", [0.0, 0.3])
async def test_what_is_given_back_in_the_middle_goes_on_in_the_message_that_was_begun(
    tmp_path: Path, send_s: float
) -> None:
    platform = Sluggish(typing=True, send_s=send_s)
    async with ModelServer(lambda _: Say(WORDS, chunks=24, delay_s=0.1)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0):
            platform.say("tell me")
            await until(lambda: platform.texts() != [], "a beginning")
        # Somebody goes on with it: that it was stopped would be wrong, and might come after its end.
        assert "(stopped)" not in platform.texts()[0]
        async with gateway_fixture(tmp_path, model, platform) as there:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await there.rest()
        assert platform.texts() == [WORDS]


async def test_a_platform_that_never_takes_what_is_shown_does_not_keep_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "END_S_MAX", 0.1)
    platform = Sluggish(send_s=3600.0, typing=True)
    async with ModelServer(lambda _: SLOW) as model, gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
        platform.say("tell me")
        await until(lambda: platform.texts() != [], "a beginning")
        platform.send_s = 0.0
        await until(lambda: WORDS in platform.texts(), "the whole answer")
        await there.rest()


async def test_what_nobody_will_finish_is_not_kept_among_what_is_to_be_sent(tmp_path: Path) -> None:
    platform = Sluggish(typing=True)
    async with ModelServer(lambda _: SLOW) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
            platform.say("tell me")
            await until(lambda: platform.texts() != [], "a beginning")
            await there.runtime.lifecycle.cross(ANNA, New(), owner="fake:42")
        async with gateway_fixture(tmp_path, model, platform) as there:
            left = await there.runtime.store.read(lambda uow: uow.outbox.replies(ReplyState.DRAFT, 9))
            assert left == ()


async def test_an_end_while_a_beginning_of_a_whole_answer_goes_out_leaves_one_message(tmp_path: Path) -> None:
    platform = Sluggish(typing=True, send_s=0.6)
    async with ModelServer(lambda _: SLOW) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as there:
            platform.say("tell me")
            await until(lambda: there.gateway.worker.running)
            await until(lambda: not there.gateway.worker.running, "that it is committed")
            assert platform.texts() != []
        async with gateway_fixture(tmp_path, model, platform) as there:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await there.rest()
        assert platform.texts() == [WORDS]


class Countable(Sluggish):
    """Can be asked for what is out, and counts how often it was."""

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

    async def take_back(self, to: Address, message_id: str) -> None: ...


async def test_a_beginning_that_was_certainly_not_sent_is_not_looked_for(tmp_path: Path) -> None:
    platform = Countable(typing=True)
    platform.faults.append(PlatformUnavailable("too much at once"))
    async with ModelServer(lambda _: Say(WORDS, chunks=24, delay_s=0.15)) as model:
        async with gateway_fixture(tmp_path, model, platform) as there:
            platform.say("tell me")
            await until(lambda: platform.edits != [], "it was begun at the second attempt")
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await there.rest()
        assert platform.texts() == [WORDS]
        assert platform.asked == 0, "whoever is told that it is too much does not ask thirty questions"


async def test_a_beginning_of_a_process_that_is_gone_is_looked_for_until_somebody_can_say(tmp_path: Path) -> None:
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
        async with gateway_fixture(tmp_path, model, platform) as there:
            await until(lambda: WORDS in platform.texts(), "the whole answer")
            await there.rest()
        assert platform.texts() == [WORDS]
        assert platform.asked > 1
