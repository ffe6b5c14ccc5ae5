"""Uncertain sends are looked up: a delivered part is not sent again, a missing part is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.runtime import CoreFixture, until

from everthread.domain.backoff import Backoff
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain, StoreError
from everthread.domain.model import Reply, ReplyState, SessionKey
from everthread.gateway import delivery_check as finding
from everthread.gateway import delivery_check as settling
from everthread.gateway import outbox as module
from everthread.gateway import outbox_rows as ledger
from everthread.gateway.delivery_check import MAY_BE_TWICE
from everthread.gateway.outbox import Outbox
from everthread.ports.platform import Address, File, Outbound

CHAT = Address("42")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", Backoff(0.01, 60.0))
    monkeypatch.setattr(module, "STORE_RETRY_S", 0.02)
    monkeypatch.setattr(settling, "RETRY_S", 0.005)
    monkeypatch.setattr(settling, "BACKOFF", Backoff(0.005, 0.02))
    monkeypatch.setattr(finding, "IN_TRANSIT_S", 0.1)
    monkeypatch.setattr(finding, "UNKNOWN_S", 0.2)
    monkeypatch.setattr(finding, "POLL_S", 0.02)


class Findable(FakePlatform):
    """A platform that numbers its messages and can find its own ones."""

    def __init__(self, **capabilities: object) -> None:
        super().__init__(**{"edits": True, **capabilities})
        self.finder = self
        self.lost = 0
        """So many of the next sends are shown, and nothing is heard of them."""
        self.hidden: set[str] = set()
        """Messages that nobody finds before the next one is sent."""
        self.asked = 0
        self.refusals: Sequence[Exception] = ()
        self.taken_back: list[str] = []
        self.known: list[str] = []

    def texts(self, chat: str = "42") -> list[str]:
        numbers = [number for number, out in enumerate(self.sent) if out.to.chat == chat]
        return [self.shown[str(number)] for number in numbers if str(number) in self.shown]

    async def send(self, message: Outbound) -> str:
        hidden, self.hidden = self.hidden, set()
        message_id = await super().send(message)
        if self.lost:
            self.lost -= 1
            self.hidden = hidden or self.hidden
            raise SendUncertain("the connection broke")
        return message_id

    def know(self, to: Address, message_id: str) -> None:
        self.known.append(message_id)

    def newest(self, to: Address) -> str:
        return str(len(self.sent))

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        self.asked += 1
        if self.refusals:
            first, *self.refusals = self.refusals
            raise first
        for number in range(int(after), int(until or len(self.sent))):
            is_there = self.sent[number].to == message.to and str(number) in self.shown
            if is_there and str(number) not in {*besides, *self.hidden}:
                return str(number)
        return None

    async def delete(self, to: Address, message_id: str) -> None:
        del self.shown[message_id]
        self.taken_back.append(message_id)


@asynccontextmanager
async def outbox(folder: Path, platform: FakePlatform) -> AsyncIterator[tuple[CoreFixture, Outbox]]:
    async with CoreFixture(folder) as core:
        delivery = Outbox(core.store, core.clock, {"fake": platform}, lambda: 0.5)
        yield core, delivery
        await delivery.finish(0.0)


async def stored(core: CoreFixture, number: int, state: ReplyState = ReplyState.READY, **rest: object) -> Reply:
    key = SessionKey.parse("agent:main:fake:dm:42")
    reply = Reply(f"turn-{number}", key, "s1", "me", f"reply {number}", state, float(number))
    return await core.store.write(lambda uow: uow.outbox.put_reply(replace(reply, **rest)))


async def row(core: CoreFixture, number: int) -> Reply:
    reply = await core.store.read(lambda uow: uow.outbox.reply(f"turn-{number}"))
    assert reply is not None
    return reply


async def incidents(core: CoreFixture) -> list[str]:
    return [one.text for one in await core.store.read(lambda uow: uow.incidents.newest(9))]


async def test_a_delivered_part_is_not_sent_again(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost = 1
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        delivery.put(await stored(core, 2))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1", "reply 2"]
        reply = await row(core, 1)
        assert (reply.state, reply.platform_message_id) == (ReplyState.SENT, "0")
        assert await incidents(core) == []


async def test_a_missing_part_is_sent_again_once(tmp_path: Path) -> None:
    platform = Findable()
    platform.faults.append(SendUncertain("the connection broke"))
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        delivery.put(await stored(core, 2))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1", "reply 2"]
        assert (await row(core, 1)).state is ReplyState.SENT
        assert platform.asked > 2, "looked up again after the transit time and after the second send"
        assert await incidents(core) == []


@pytest.mark.parametrize("is_out", [True, False])
async def test_a_part_from_a_killed_process_is_delivered_once(tmp_path: Path, is_out: bool) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        await stored(core, 2)
        if is_out:
            await platform.send(Outbound("turn-1.0", CHAT, "reply 1"))
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1", "reply 2"]
        assert len(platform.sent) == 2
        assert (await row(core, 1)).state is ReplyState.SENT
        assert await incidents(core) == []


async def test_the_check_waits_for_a_part_that_arrives_late(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        await delivery.begin()
        await until(lambda: platform.asked)
        await platform.send(Outbound("turn-1.0", CHAT, "reply 1"))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_an_undecidable_part_is_sent_again_with_a_notice(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost, platform.refusals = 1, [SendUncertain("too much to ask")] * 99
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1", f"{MAY_BE_TWICE}\n\nreply 1"]
        assert (await row(core, 1)).state is ReplyState.SENT
        (incident,) = await incidents(core)
        assert "may not have reached fake chat 42: " in incident
        assert "too much to ask" in incident


async def test_a_failed_lookup_is_retried_and_may_succeed_later(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost, platform.refusals = 1, [SendUncertain("too much to ask")] * 3
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]
        assert await incidents(core) == []


async def test_a_part_that_was_sent_twice_is_not_sent_a_third_time(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost = 9
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert len(platform.sent) == 1, "without a known message the delivery is undecidable"
        assert (await row(core, 1)).state is ReplyState.AMBIGUOUS


async def test_a_notice_that_does_not_fit_is_a_separate_message(tmp_path: Path) -> None:
    platform = Findable(text_chars_max=len(MAY_BE_TWICE))
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, text="x" * len(MAY_BE_TWICE))
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == [MAY_BE_TWICE, "x" * len(MAY_BE_TWICE)]


async def test_a_draft_with_an_unknown_id_is_found_and_completed(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-0.0", CHAT, "reply 0"))
        await platform.send(Outbound("turn-1.0", CHAT, "rep …"))
        delivery.put(await stored(core, 1, platform_message_id="", sent_after="1"))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 0", "reply 1"]
        assert (await row(core, 1)).platform_message_id == "1"
        assert await incidents(core) == []


async def test_a_draft_that_was_not_delivered_raises_no_incident(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1, platform_message_id="", sent_after="0"))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]
        assert await incidents(core) == []


async def test_a_message_of_another_reply_is_not_used(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-2.0", CHAT, "the beginning of 2 …"))
        await stored(core, 2, ReplyState.DRAFT, platform_message_id="0")
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["the beginning of 2 …", "reply 1"]
        assert platform.known == ["0"], "the platform learns known message ids"


async def test_a_duplicate_found_after_the_second_send_is_deleted(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost = 1
    platform.hidden = {"0"}
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.taken_back == ["1"]
        assert platform.texts() == ["reply 1"]
        assert (await row(core, 1)).platform_message_id == "0"


async def test_a_failed_duplicate_check_raises_an_incident(tmp_path: Path) -> None:
    platform = Findable()
    platform.faults.append(SendUncertain("the connection broke"))
    find = platform.find

    async def find_before(message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        if until:
            raise SendUncertain("too much to ask")
        return await find(message, after, until, besides)

    platform.find = find_before  # type: ignore[method-assign]
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        (incident,) = await incidents(core)
        assert "may be twice in fake chat 42" in incident
        assert platform.texts() == ["reply 1"]


async def test_the_next_part_follows_a_part_that_was_found(tmp_path: Path) -> None:
    platform = Findable(text_chars_max=64)
    text = "\n\n".join("abcdefgh " * 6 for _ in range(3))
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-1.0", CHAT, "one"))
        await platform.send(Outbound("turn-1.1", CHAT, "abcdefgh " * 6))
        before = {"platform_message_id": "0", "parts": 1, "text": text}
        await stored(core, 1, ReplyState.SENDING, sent_after="1", **before)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert [out.id for out in platform.sent] == ["turn-1.0", "turn-1.1", "turn-1.2"]


async def test_a_rate_limited_lookup_is_retried_later(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost, platform.refusals = 1, [PlatformUnavailable("too much at once", 0.01)]
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_a_lookup_interrupted_by_a_stop_is_continued_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "IN_TRANSIT_S", 60.0)
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        for number in range(3):
            await platform.send(Outbound(f"else-{number}", Address("7"), "to somebody else"))
        await delivery.begin()
        await until(lambda: platform.asked > 1)
        await delivery.finish(0.0)
        left = await row(core, 1)
        assert (left.state, left.sent_after) == (ReplyState.SENDING, "3"), "the searched range is stored"
        monkeypatch.setattr(finding, "IN_TRANSIT_S", 0.0)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_a_chat_that_was_closed_leaves_the_reply_ambiguous(tmp_path: Path) -> None:
    platform = Findable()
    platform.faults += [SendUncertain("the connection broke"), PlatformRefused("they have gone")]
    platform.refusals = [PlatformRefused("they have gone")] * 9
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert (await row(core, 1)).state is ReplyState.AMBIGUOUS
        assert platform.texts() == []


async def test_a_question_of_a_dead_process_is_withheld_without_a_lookup(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        question = replace(await stored(core, 1), turn_id=f"{module.QUESTION}k7", state=ReplyState.SENDING)
        await core.store.write(lambda uow: uow.outbox.put_reply(question))
        await stored(core, 1, ReplyState.SENT)
        await delivery.begin()
        left = await core.store.read(lambda uow: uow.outbox.reply(question.turn_id))
        assert left is not None
        assert left.state is ReplyState.WITHHELD
        assert not delivery.waiting


async def test_a_message_that_cannot_be_edited_is_not_the_lost_part(tmp_path: Path) -> None:
    platform = Findable()
    edit = platform.edit

    async def edit_some(to: Address, message_id: str, *rest: Any) -> None:
        if message_id == "0":
            raise PlatformRefused("it is not yours")
        await edit(to, message_id, *rest)

    platform.edit = edit_some  # type: ignore[method-assign]
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("theirs", CHAT, "hello"))
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["hello", "reply 1"]


class Numbered(Findable):
    """A platform that knows message ids only from know() and from its own sends."""

    def __init__(self, **capabilities: object) -> None:
        super().__init__(**capabilities)
        self.heard = -1

    async def send(self, message: Outbound) -> str:
        message_id = await super().send(message)
        self.know(message.to, message_id)
        return message_id

    def know(self, to: Address, message_id: str) -> None:
        super().know(to, message_id)
        self.heard = max(self.heard, int(message_id))

    def newest(self, to: Address) -> str:
        return str(self.heard + 1)


async def test_a_part_that_was_found_is_not_used_for_the_next_one(tmp_path: Path) -> None:
    platform = Numbered(text_chars_max=64)
    platform.lost = 2
    parts = [f"{number} abcdefgh abcdefgh abcdefgh abcdefgh abcdefgh" for number in range(3)]
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1, text="\n\n".join(parts), sent_after="0"))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == parts


async def forget(core: CoreFixture, number: int) -> None:
    await core.store.write(lambda uow: uow.erasure.scrubber.scrub_owner("me"))
    assert (await row(core, number)).text == ""


@pytest.mark.parametrize("known", ["0", ""])
async def test_a_reply_forgotten_during_the_lookup_is_not_sent(tmp_path: Path, known: str) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        platform.refusals = [] if known else [SendUncertain("too much to ask")] * 99
        await delivery.begin()
        await until(lambda: platform.asked)
        await forget(core, 1)
        await until(lambda: not delivery.waiting)
        assert platform.sent == []
        assert (await row(core, 1)).state is ReplyState.WITHHELD


async def test_a_forgotten_reply_is_not_completed_when_it_is_found(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING, sent_after="0")
        await delivery.begin()
        await until(lambda: platform.asked)
        await forget(core, 1)
        await platform.send(Outbound("turn-1.0", CHAT, "rep …"))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["rep …"]


async def test_an_unexpected_error_in_a_lookup_leaves_an_ambiguous_reply_and_an_incident(tmp_path: Path) -> None:
    platform = Findable()
    platform.lost, platform.refusals = 1, [ZeroDivisionError("a mistake")]
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        delivery.put(await stored(core, 2))
        await until(lambda: not delivery.waiting)
        assert (await row(core, 1)).state is ReplyState.AMBIGUOUS
        assert (await row(core, 2)).state is ReplyState.SENT
        (incident,) = await incidents(core)
        assert "may not have reached fake chat 42" in incident


async def test_a_lookup_that_is_rate_limited_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RETRY_AFTER_S_MAX", 0.1)
    platform = Findable()
    platform.lost, platform.refusals = 1, [PlatformUnavailable("too much at once", 0.01)] * 999
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1", f"{MAY_BE_TWICE}\n\nreply 1"]


async def test_an_uncertain_resend_waits_for_an_unavailable_platform(tmp_path: Path) -> None:
    platform = Findable()
    platform.faults += [PlatformUnavailable("it can't be reached")] * 20
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert platform.texts() == [f"{MAY_BE_TWICE}\n\nreply 1"]
        assert (await row(core, 1)).state is ReplyState.SENT
        assert len(await incidents(core)) == 1


async def test_a_draft_of_a_reply_with_a_file_is_found_and_completed(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-1.0", CHAT, "rep …"))
        reply = await stored(core, 1, platform_message_id="", sent_after="0")
        delivery.put(reply, files=(File("list.txt", b"eggs"),))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]


async def test_two_lookups_in_one_chat_do_not_find_the_same_message(tmp_path: Path) -> None:
    platform = Numbered()
    find, edit = platform.find, platform.edit

    async def find_unknown(message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        return await find(message, after, until, {*besides, *platform.known})

    async def edit_slowly(*rest: Any) -> None:
        await asyncio.sleep(0.01)
        await edit(*rest)

    platform.find, platform.edit = find_unknown, edit_slowly  # type: ignore[method-assign]
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-1.0", CHAT, "the beginning of 1 …"))
        platform.known.clear()
        replies = [await stored(core, number, ReplyState.SENDING, sent_after="0") for number in (1, 2)]
        looking = [
            delivery.delivery_check.find(platform, Outbound(f"{reply.turn_id}.0", CHAT, reply.text), reply, 0.0)
            for reply in replies
        ]
        assert await asyncio.gather(*looking) == [finding.Delivered("0"), finding.NotDelivered()]


async def test_a_text_found_without_its_file_raises_an_incident(tmp_path: Path) -> None:
    platform = Findable(files=True)
    platform.lost = 1
    async with outbox(tmp_path, platform) as (core, delivery):
        delivery.put(await stored(core, 1), files=(File("list.txt", b"eggs"),))
        await until(lambda: not delivery.waiting)
        assert platform.texts() == ["reply 1"]
        (incident,) = await incidents(core)
        assert incident == "a file of a reply may not have reached fake chat 42"


async def test_a_store_error_does_not_prevent_an_uncertain_resend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await stored(core, 1, ReplyState.SENDING)
        read_inline, failed = core.store.read_inline, []

        async def peek_later(work: Any) -> Any:
            found = await read_inline(work)
            if isinstance(found, Reply) and found.state is ReplyState.AMBIGUOUS and not failed:
                failed.append(found)
                raise StoreError("the disk is full")
            return found

        monkeypatch.setattr(core.store, "read_inline", peek_later)
        await delivery.begin()
        await until(lambda: not delivery.waiting)
        assert failed
        assert platform.texts() == [f"{MAY_BE_TWICE}\n\nreply 1"]


async def test_a_lookup_after_a_long_outage_waits_for_incoming_messages(tmp_path: Path) -> None:
    platform = Findable()
    async with outbox(tmp_path, platform) as (core, delivery):
        await platform.send(Outbound("turn-1.0", CHAT, "reply 1"))
        reply = await stored(core, 1, ReplyState.SENDING, sent_after="0")
        platform.refusals = [SendUncertain("100 messages that came in are not known yet")] * 3
        lost = Outbound("turn-1.0", CHAT, "reply 1")
        long_ago = asyncio.get_running_loop().time() - 3600.0
        assert await delivery.delivery_check.find(platform, lost, reply, long_ago) == finding.Delivered("0")
