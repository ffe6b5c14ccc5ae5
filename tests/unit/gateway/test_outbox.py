"""The outbox: replies in order, once, and with an incident for every failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.runtime import CoreFixture, until

from everthread.domain.backoff import Backoff
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain, StoreBusy
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.gateway import outbox as module
from everthread.gateway import outbox_rows as ledger
from everthread.gateway.outbox import Outbox
from everthread.ports.platform import Address, Button, Outbound
from everthread.store.unit_of_work import Store


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", Backoff(0.01, 60.0))
    monkeypatch.setattr(module, "STORE_RETRY_S", 0.02)
    monkeypatch.setattr(ledger, "RETRY_S", 0.02)


@asynccontextmanager
async def outbox(folder: Path, platform: FakePlatform) -> AsyncIterator[tuple[CoreFixture, Outbox]]:
    async with CoreFixture(folder) as core:
        delivery = Outbox(core.store, core.clock, {"fake": platform}, lambda: 0.5)
        yield core, delivery
        await delivery.finish(0.0)


async def stored(
    core: CoreFixture, number: int, text: str = "", state: ReplyState = ReplyState.READY, chat: str = "42"
) -> Reply:
    reply = Reply(
        f"turn-{number}",
        SessionKey.parse(f"agent:main:fake:dm:{chat}"),
        "s1",
        "me",
        text or f"reply {number}",
        state,
        float(number),
    )
    return await core.store.write(lambda uow: uow.outbox.put_reply(reply))


async def state_of(core: CoreFixture, number: int) -> Reply:
    reply = await core.store.read(lambda uow: uow.outbox.reply(f"turn-{number}"))
    assert reply is not None
    return reply


async def test_replies_are_sent_in_order_and_marked(tmp_path: Path) -> None:
    platform = FakePlatform()
    async with outbox(tmp_path, platform) as (core, delivery):
        for number in range(5):
            delivery.put(await stored(core, number))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == [f"reply {number}" for number in range(5)]
        assert (await state_of(core, 4)).state is ReplyState.SENT


async def test_a_failed_send_is_retried(tmp_path: Path) -> None:
    platform = FakePlatform()
    platform.faults += [PlatformUnavailable("down"), PlatformUnavailable("slow down", retry_after=0.02)]
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_an_uncertain_send_is_reported_and_not_repeated(tmp_path: Path) -> None:
    platform = FakePlatform()
    platform.faults.append(SendUncertain("the connection broke"))
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        delivery.put(await stored(core, 2))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 2"]
        assert (await state_of(core, 1)).state is ReplyState.AMBIGUOUS
        (incident,) = await core.store.read(lambda uow: uow.incidents.newest(9))
        assert "may not have reached fake chat 42" in incident.text


async def test_an_uncertain_send_is_repeated_on_an_idempotent_platform(tmp_path: Path) -> None:
    platform = FakePlatform(idempotent_send=True)
    platform.faults.append(SendUncertain("the connection broke"))
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_a_question_of_a_dead_process_is_withheld(tmp_path: Path) -> None:
    platform = FakePlatform()
    async with outbox(tmp_path, platform) as (core, delivery):
        question = replace(await stored(core, 1), turn_id=f"{module.QUESTION}s1-k7qm")
        await core.store.write(lambda uow: uow.outbox.put_reply(question))
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]
        left = await core.store.read(lambda uow: uow.outbox.reply(question.turn_id))
        assert left is not None
        assert left.state is ReplyState.WITHHELD


class Waiting(FakePlatform):
    """A platform that sends nothing until its event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.goes = asyncio.Event()

    async def send(self, message: Outbound) -> str:
        self.asked.append(message.to.chat)
        await self.goes.wait()
        return await super().send(message)


async def test_the_number_of_concurrent_sends_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENDING_S_MAX", 3600.0)
    platform = Waiting()
    async with outbox(tmp_path, platform) as (core, delivery):
        for number in range(20):
            delivery.put(await stored(core, number, chat=f"chat-{number}"))
        await until(lambda: len(platform.asked) == module.SENDING_MAX)
        await asyncio.sleep(0.05)
        handed_over = await core.store.read(lambda uow: uow.outbox.replies(ReplyState.SENDING, 99))
        assert len(handed_over) == len(platform.asked) == module.SENDING_MAX
        platform.goes.set()
        await until(lambda: not delivery.waiting)
        assert len(platform.sent) == 20


async def test_slow_chats_do_not_block_other_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENDING_S_MAX", 0.01)
    platform = Waiting()
    async with outbox(tmp_path, platform) as (core, delivery):
        for number in range(20):
            delivery.put(await stored(core, number, chat=f"chat-{number}"))
        await until(lambda: len(platform.asked) == 20)
        platform.goes.set()
        await until(lambda: not delivery.waiting)


async def test_a_refused_reply_fails_and_does_not_block_the_next_one(tmp_path: Path) -> None:
    platform = FakePlatform()
    platform.faults.append(PlatformRefused("the chat is gone"))
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        delivery.put(await stored(core, 2))
        await until(lambda: not delivery.waiting)
        assert (await state_of(core, 1)).state is ReplyState.FAILED
        assert platform.texts() == ["reply 2"]


async def test_a_long_reply_continues_after_a_restart(tmp_path: Path) -> None:
    platform = FakePlatform(text_chars_max=64)
    text = "\n\n".join("abcdefgh " * 6 for _ in range(3))
    async with outbox(tmp_path, platform) as (core, delivery):
        reply = await stored(core, 1, text)
        await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, parts=2)))
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert len(platform.sent) == 1
        assert platform.sent[0].id == "turn-1.2"


@pytest.mark.parametrize("safe", [True, False])
async def test_a_send_of_a_killed_process_is_uncertain(tmp_path: Path, safe: bool) -> None:
    platform = FakePlatform(idempotent_send=safe)
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, state=ReplyState.SENDING)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == (["reply 1"] if safe else [])
        assert (await state_of(core, 1)).state is (ReplyState.SENT if safe else ReplyState.AMBIGUOUS)


async def test_a_reply_that_was_forgotten_meanwhile_is_not_sent(tmp_path: Path) -> None:
    platform = FakePlatform()
    platform.faults.append(PlatformUnavailable("down", retry_after=0.1))
    async with outbox(tmp_path, platform) as (core, delivery):
        reply = await stored(core, 1)
        delivery.put(reply)
        await until(lambda: not platform.faults)
        await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, state=ReplyState.WITHHELD)))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == []


async def test_a_draft_is_edited_and_not_sent_again(tmp_path: Path) -> None:
    platform = FakePlatform(edits=True)
    async with outbox(tmp_path, platform) as (core, delivery):
        platform.sent.append(None)  # type: ignore[arg-type]
        platform.shown["0"] = "the beg"
        reply = await stored(core, 1)
        reply = await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, platform_message_id="0")))
        delivery.put(reply)
        await until(lambda: not delivery.waiting)
        assert platform.shown == {"0": "reply 1"}


async def test_a_draft_with_an_unknown_id_is_completed_on_an_idempotent_platform(tmp_path: Path) -> None:
    platform = FakePlatform(edits=True, idempotent_send=True)
    async with outbox(tmp_path, platform) as (core, delivery):
        reply = await stored(core, 1)
        await platform.send(Outbound("turn-1.0", Address.of(reply.key), "rep …"))
        reply = await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, platform_message_id="")))
        delivery.put(reply)
        await until(lambda: not delivery.waiting)
        assert platform.shown == {"0": "reply 1"}
        assert (await state_of(core, 1)).platform_message_id == "0"


class Failing:
    """A store whose next writes fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails = 0

    async def write(self, work: Any) -> Any:
        if self.fails > 0:
            self.fails -= 1
            raise StoreBusy("somebody holds it")
        return await self._store.write(work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_failed_record_of_a_sent_part_does_not_stop_the_next_parts(tmp_path: Path) -> None:
    platform = FakePlatform(text_chars_max=64)
    async with CoreFixture(tmp_path) as core:
        store = Failing(core.store)
        delivery = Outbox(store, core.clock, {"fake": platform}, lambda: 0.5)  # type: ignore[arg-type]
        reply = await stored(core, 1, "\n\n".join("abcdefgh " * 6 for _ in range(3)))
        send = platform.send

        async def send_and_fail(message: Outbound) -> str:
            store.fails = 2
            return await send(message)

        platform.send = send_and_fail  # type: ignore[method-assign]
        delivery.put(reply)
        await until(lambda: not delivery.waiting)
        assert [out.id for out in platform.sent] == ["turn-1.0", "turn-1.1", "turn-1.2"]
        assert (await state_of(core, 1)).state is ReplyState.SENT


async def test_an_unexpected_client_error_leaves_an_ambiguous_reply_and_an_incident(tmp_path: Path) -> None:
    platform = FakePlatform()
    platform.faults.append(KeyError("ok"))
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert (await state_of(core, 1)).state is ReplyState.AMBIGUOUS
        assert len(await core.store.read(lambda uow: uow.incidents.newest(9))) == 1


async def test_an_edit_that_a_killed_process_began_is_repeated(tmp_path: Path) -> None:
    platform = FakePlatform(edits=True)
    async with outbox(tmp_path, platform) as (core, delivery):
        platform.sent.append(None)  # type: ignore[arg-type]
        platform.shown["0"] = "the beg"
        reply = await stored(core, 1, state=ReplyState.SENDING)
        await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, platform_message_id="0")))
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.shown == {"0": "reply 1"}
        assert (await state_of(core, 1)).state is ReplyState.SENT


async def test_buttons_are_added_to_a_reply_that_is_already_queued(tmp_path: Path) -> None:
    platform = FakePlatform()
    async with outbox(tmp_path, platform) as (core, delivery):
        reply = await stored(core, 1)
        delivery.put(reply)
        delivery.put(reply, (Button("One", "/resume 1"),))
        await until(lambda: not delivery.waiting)
        assert [out.buttons for out in platform.sent] == [(Button("One", "/resume 1"),)]


@pytest.mark.parametrize("safe", [True, False])
async def test_a_reply_forgotten_during_its_send_is_not_stored_again(tmp_path: Path, safe: bool) -> None:
    platform = FakePlatform(idempotent_send=safe)
    async with outbox(tmp_path, platform) as (core, delivery):

        async def forgotten_meanwhile(_: Outbound) -> str:
            await core.store.write(lambda uow: uow.erasure.scrubber.scrub_owner("me"))
            raise PlatformUnavailable("down")

        platform.send = forgotten_meanwhile  # type: ignore[method-assign]
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        kept = await state_of(core, 1)
        assert (kept.text, kept.state) == ("", ReplyState.WITHHELD)


async def test_a_failing_store_does_not_delay_the_stop(tmp_path: Path) -> None:
    platform = FakePlatform()
    async with CoreFixture(tmp_path) as core:
        store = Failing(core.store)
        delivery = Outbox(store, core.clock, {"fake": platform}, lambda: 0.5)  # type: ignore[arg-type]
        send = platform.send

        async def send_slowly(message: Outbound) -> str:
            store.fails = 10**9
            await asyncio.sleep(0.1)
            return await send(message)

        platform.send = send_slowly  # type: ignore[method-assign]
        delivery.put(await stored(core, 1))
        await until(lambda: store.fails)
        async with asyncio.timeout(2):
            await delivery.finish(0.0)


@pytest.mark.parametrize("safe", [True, False])
async def test_a_send_that_hangs_blocks_its_chat_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe: bool
) -> None:
    monkeypatch.setattr(module, "SEND_S_MAX", 0.05)
    platform = FakePlatform(idempotent_send=safe)
    send, hung = platform.send, False

    async def hang_once(message: Outbound) -> str:
        nonlocal hung
        if not hung:
            hung = True
            await asyncio.sleep(3600)
        return await send(message)

    platform.send = hang_once  # type: ignore[method-assign]
    async with outbox(tmp_path, platform) as (core, delivery):
        for number in (1, 2):
            delivery.put(await stored(core, number))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == (["reply 1", "reply 2"] if safe else ["reply 2"])
        assert (await state_of(core, 1)).state is (ReplyState.SENT if safe else ReplyState.AMBIGUOUS)


async def test_a_file_that_is_too_large_to_send_as_text_fails(tmp_path: Path) -> None:
    platform = FakePlatform(files=False)
    async with outbox(tmp_path, platform) as (core, delivery):
        for number, content in ((1, b"word " * 2_000_000), (2, b"short")):
            key = SessionKey.parse("agent:main:fake:dm:42")
            reply = Reply(f"turn-{number}", key, "", "me", "See:", ReplyState.READY, 1.0, file="log.txt")
            await core.store.write(lambda uow, n=number, c=content: uow.outbox.attach(f"turn-{n}", "me", "log.txt", c))
            delivery.put(await core.store.write(lambda uow, r=reply: uow.outbox.put_reply(r)))
        await until(lambda: platform.texts() == ["See:\n\nshort"], "only what can be read is sent")
        assert (await state_of(core, 1)).state is ReplyState.FAILED
        (incident,) = await core.store.read(lambda uow: uow.incidents.newest(5))
        assert "log.txt" in incident.text
