"""Delivery checks on the emulated Telegram: find a message whose response was lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.runtime import until
from tests.telegram_gateway import ANN, BOB, TOKEN

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.adapters.platforms.telegram.http import abrupt_socket
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import PlatformRefused, PlatformUnavailable, SendUncertain
from everthread.ports.platform import Address, Button, File, Incoming, Outbound
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

TO = Address(str(ANN))
SUPERGROUP = -1_001_234_567_890


class Place(NamedTuple):
    platform: TelegramPlatform
    people: TelegramUsers
    emulator: TelegramEmulator


def platform_at(emulator: TelegramEmulator, folder: Path) -> TelegramPlatform:
    account = PlatformAccount("telegram", base_url=emulator.base_url)
    return TelegramPlatform("telegram", account, TOKEN, TokenLock(folder, TOKEN), commands={})


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, TelegramUsers(emulator.base_url) as people:
        await people.say(ANN, "/start")
        platform = platform_at(emulator, folder)
        yield Place(platform, people, emulator)
        await platform.aclose()


def text(words: str, to: Address = TO) -> Outbound:
    return Outbound("t.0", to, words)


async def lost(fixture: Place, message: Outbound, call: str = "sendMessage") -> None:
    await fixture.people.fault(wire.Fault("drop_after", call))
    with pytest.raises(SendUncertain):
        await fixture.platform.send(message)


async def test_a_file_is_found_by_its_caption_and_not_confused_with_a_text(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        finder = fixture.platform.finder
        finder.know(TO, "1")
        mark, file = finder.newest(TO), Outbound("t.0", TO, "the *list*", files=(File("list.txt", b"eggs"),))
        await lost(fixture, text("the list follows"))
        await lost(fixture, file, "sendDocument")
        before = [(one.text, one.marked) for one in await fixture.people.messages(ANN)]
        assert await finder.find(file, mark) == "3"
        assert await finder.find(text("the list follows"), mark) == "2"
        assert [(one.text, one.marked) for one in await fixture.people.messages(ANN)] == before
        assert not any(one.is_edited for one in await fixture.people.messages(ANN)), "the check edited a message"


async def test_a_check_keeps_the_buttons_of_a_message(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        fixture.platform.finder.know(TO, "1")
        mark = fixture.platform.finder.newest(TO)
        question = Outbound("t.0", TO, "Which?", (Button("One", "/resume 1"),))
        await lost(fixture, question)
        assert await fixture.platform.finder.find(question, mark) == "2"
        assert (await fixture.people.messages(ANN))[-1].buttons == ((("One", "/resume 1"),),)


async def test_in_a_supergroup_the_message_is_found_among_those_of_other_users(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        await fixture.people.group(wire.Group(SUPERGROUP, "The office"))
        to, finder = Address(str(SUPERGROUP)), fixture.platform.finder
        await fixture.platform.send(text("hello", to))
        mark = finder.newest(to)
        for number in range(20):
            await fixture.people.say(BOB, f"word {number}", chat=SUPERGROUP)
        await lost(fixture, text("bye", to))
        found = await finder.find(text("bye", to), mark)
        assert found is not None
        await fixture.platform.edit(to, found, "good bye")
        await fixture.people.refresh()
        assert fixture.people.texts(SUPERGROUP) == ["hello", "good bye"]
        # Message ids of a supergroup are independent of those of other chats.
        await lost(fixture, text("in private"))
        assert await finder.find(text("bye", to), mark, besides={found}) is None


async def test_a_message_being_sent_is_not_taken_for_the_lost_one(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        await fixture.people.fault(wire.Fault("delay", "sendMessage", seconds=0.5))
        finder = fixture.platform.finder
        finder.know(TO, "1")
        mark = finder.newest(TO)
        sending = asyncio.ensure_future(fixture.platform.send(text("another answer")))
        await fixture.people.until(lambda: fixture.people.texts(ANN) == ["another answer"], "it is shown")
        assert not sending.done()
        assert await finder.find(text("lost"), mark) is None
        assert await sending == "2"


async def test_ids_of_received_messages_are_not_checked(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        came: list[Incoming] = []

        async def take(update: Incoming) -> None:
            came.append(update)

        listening = asyncio.ensure_future(fixture.platform.run(take))
        finder = fixture.platform.finder
        finder.know(TO, "1")
        mark = finder.newest(TO)
        for number in range(300):
            await fixture.people.say(BOB, f"word {number}")
        await lost(fixture, text("bye"))
        await until(lambda: len(came) == 301)
        assert await finder.find(text("bye"), mark) == "302"
        listening.cancel()
        await asyncio.wait({listening})


async def test_too_many_ids_to_check_leave_the_delivery_uncertain(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        finder = fixture.platform.finder
        finder.know(TO, "1")
        mark = finder.newest(TO)
        finder.know(TO, "9000")
        with pytest.raises(SendUncertain):
            await finder.find(text("bye"), mark)


async def test_many_pending_updates_leave_the_delivery_uncertain(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        finder = fixture.platform.finder
        finder.know(TO, "1")
        mark = finder.newest(TO)
        for number in range(100):
            await fixture.people.say(BOB, f"word {number}")
        await lost(fixture, text("bye"))
        with pytest.raises(SendUncertain, match="not received yet"):
            await finder.find(text("bye"), mark)


async def test_a_retry_delay_is_passed_on(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        fixture.platform.finder.know(TO, "1")
        await fixture.people.fault(wire.Fault("busy", "editMessageCaption", seconds=7.0))
        with pytest.raises(PlatformUnavailable) as failure:
            await fixture.platform.finder.find(text("bye"), fixture.platform.finder.newest(TO))
        assert failure.value.retry_after == 7.0


async def test_a_group_that_became_a_supergroup_leaves_the_delivery_uncertain(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        await fixture.people.group(wire.Group(-501, "The office", kind="group"))
        to, finder = Address("-501"), fixture.platform.finder
        await fixture.platform.send(text("hello", to))
        mark = finder.newest(to)
        await fixture.people.upgrade(BOB, -501, SUPERGROUP)
        await fixture.platform.show_typing(to)
        with pytest.raises(SendUncertain):
            await finder.find(text("bye", to), mark)


def test_an_aborted_connection_discards_its_unsent_data() -> None:
    with abrupt_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == b"\x01\x00\x00\x00\x00\x00\x00\x00"


async def test_a_check_that_discovers_a_migration_does_not_edit_in_the_supergroup(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        await fixture.people.group(wire.Group(-501, "The office", kind="group"))
        to, supergroup = Address("-501"), Address(str(SUPERGROUP))
        await fixture.people.upgrade(BOB, -501, SUPERGROUP)
        # In the supergroup, these ids belong to other messages.
        for number in range(5):
            await fixture.platform.send(
                Outbound("t.0", supergroup, f"caption {number}", files=(File("list.txt", b"eggs"),))
            )
        later = platform_at(fixture.emulator, tmp_path / "later")
        later.finder.know(TO, "1")
        with pytest.raises(SendUncertain, match="message ids have changed"):
            await later.finder.find(text("bye", to), "0/1")
        with pytest.raises(SendUncertain, match="message ids have changed"):
            await later.finder.find(text("bye", to), "0/1")
        await later.aclose()
        await fixture.people.refresh()
        shown = [one.text for one in await fixture.people.messages(SUPERGROUP) if one.text]
        assert [words for words in shown if words.startswith("caption")] == [f"caption {n}" for n in range(5)]


async def test_a_message_of_another_topic_is_not_edited_as_an_answer_in_this_one(tmp_path: Path) -> None:
    async with place(tmp_path) as fixture:
        await fixture.people.group(wire.Group(SUPERGROUP, "The office", is_forum=True))
        topics = [await fixture.people.open_topic(BOB, SUPERGROUP, name) for name in ("Plans", "Bills")]
        plans, bills = (Address(str(SUPERGROUP), str(topic)) for topic in topics)
        beginning = await fixture.platform.send(text("Of the plans …", plans))
        with pytest.raises(PlatformRefused):
            await fixture.platform.edit(bills, beginning, "The bills are paid.")
        # The failed edit has not moved the message: its own topic can still edit it.
        await fixture.platform.edit(plans, beginning, "Of the plans nothing is left.")
        answer = await fixture.platform.send(text("The bills …", bills))
        await fixture.platform.edit(bills, answer, "The bills are paid.")
        await fixture.platform.edit(bills, answer, "The bills are paid.")
        everywhere = await fixture.platform.send(text("To all …", Address(str(SUPERGROUP))))
        await fixture.platform.edit(Address(str(SUPERGROUP)), everywhere, "To all")
        await fixture.people.refresh()
        shown = ["Of the plans nothing is left.", "The bills are paid.", "To all"]
        assert fixture.people.texts(SUPERGROUP) == shown
