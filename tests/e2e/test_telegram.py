"""The gateway on Telegram, against the emulated Bot API."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.runtime import until
from tests.telegram_gateway import ANN, BOB, TOKEN, introduce, settings_of, telegram_gateway
from tests.transcription import VOICE, TranscriptionServer

from everthread.adapters.platforms.telegram import TelegramPlatform, TokenLock
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import GatewaySettings, PlatformAccount, ProviderSettings
from everthread.domain.errors import PlatformRefused
from everthread.domain.model import SessionKey, ToolCall
from everthread.gateway.attachments import NO_TRANSCRIBER, NOT_TRANSCRIBED
from everthread.ports.model import ToolSchema
from everthread.ports.platform import Address, Button, File, Media, Outbound
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

GROUP = wire.Group(-1001, "The office")
FORUM = wire.Group(-1002, "The forum", is_forum=True)
PICTURE = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU"
    b"\0\0\0\nIDATx\x9cc`\0\0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82"
)
BOLD = "A **bold** word, and snake_case."


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def model(answer: str = "") -> ModelServer:
    """Model server that gives the fixed answer, or quotes the newest message."""

    def script(request: Any) -> Say:
        said = [str(message.content) for message in request.messages if message.role == "user"]
        return Say(answer or f"You said: {said[-1]}")

    return ModelServer(script)


def platform_at(emulator: TelegramEmulator, folder: Path, **account: Any) -> TelegramPlatform:
    given = PlatformAccount("telegram", base_url=emulator.base_url, **account)
    return TelegramPlatform("telegram", given, TOKEN, TokenLock(folder, TOKEN), commands={"help": "Show this."})


# --- Conversations ---------------------------------------------------------------------------------------------------


async def test_messages_in_a_private_chat_are_answered(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        assert await fixture.hear("hello") == ["You said: hello"]
        assert "Start a new session" in "".join(await fixture.hear("/start"))
        dump = await fixture.people.dump()
        assert dump.commands["new"] == "Start a new session."
        assert "quit" not in dump.commands


async def test_in_a_group_only_mentions_of_the_bot_and_replies_to_it_are_answered(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        group = await fixture.people.group(GROUP)
        await fixture.people.say(ANN, "nobody asked the bot", chat=group)
        await fixture.people.say(ANN, "/weather today", chat=group)
        await fixture.people.say(ANN, "/new@other_bot", chat=group)
        await fixture.people.say(ANN, "@test_botanist is somebody else", chat=group)
        await fixture.people.say(ANN, "@Test_Bot, what now?", chat=group)
        await fixture.people.until(lambda: fixture.people.texts(group) == ["You said: what now?"], "one answer")
        sent = fixture.people.sent(group)[0]
        await fixture.people.say(ANN, "and then?", chat=group, reply_to=sent.message_id)
        await fixture.people.until(lambda: len(fixture.people.texts(group)) == 2, "an answer to the answer")
        assert "and then?" in fixture.people.texts(group)[1]
        await fixture.people.say(ANN, "/status@test_bot", chat=group)
        await fixture.people.until(lambda: len(fixture.people.texts(group)) == 3, "a command")
        await fixture.rest()
        await fixture.people.refresh()
        assert len(fixture.people.texts(group)) == 3


async def test_in_a_group_every_message_is_answered_if_configured(tmp_path: Path) -> None:
    async with (
        model() as server,
        telegram_gateway(tmp_path, server, account={"trigger": "all", "groups": "shared"}) as fixture,
    ):
        await fixture.people.introduce(ANN, "Ann")
        group = await fixture.people.group(GROUP)
        await fixture.people.say(ANN, "good morning", chat=group)
        await fixture.people.until(lambda: fixture.people.texts(group) == ["You said: Ann: good morning"], "an answer")


async def test_a_topic_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server, account={"trigger": "all"}) as fixture:
        forum = await fixture.people.group(FORUM)
        first = await fixture.people.open_topic(ANN, forum, "First")
        second = await fixture.people.open_topic(ANN, forum, "Second")
        await fixture.people.say(ANN, "one", chat=forum, thread=first)
        await fixture.people.say(ANN, "two", chat=forum, thread=second)
        await fixture.people.until(lambda: len(fixture.people.texts(forum)) == 2, "two answers")
        assert "one" in fixture.people.texts(forum, first)[0]
        assert "two" in fixture.people.texts(forum, second)[0]
        keys = [SessionKey.parse(f"agent:main:telegram:thread:{forum}:{topic}") for topic in (first, second)]
        assert len({(await fixture.session(key)).id for key in keys}) == 2


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path) -> None:
    slow = ModelServer(lambda _: Say("word " * 40, chunks=40, delay_s=0.08))
    async with slow as server, telegram_gateway(tmp_path, server, account={"stream": True}) as fixture:
        await fixture.people.say(ANN, "tell me")
        await fixture.people.until(lambda: fixture.people.texts(ANN) == [("word " * 40).strip()], "the whole answer")
        await fixture.rest()
        shown = [one for one in fixture.people.log if one.chat == ANN and one.what in ("sent", "edited")]
        assert shown[0].text.endswith("…")
        assert len(shown) >= 3, "fewer than three updates of the answer were shown"
        assert len({one.message_id for one in shown}) == 1
        assert (await fixture.people.dump()).calls["sendChatAction"] >= 1


async def test_a_button_resumes_a_conversation(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.hear("the first one")
        first = (await fixture.session()).id
        await fixture.hear("/new")
        await fixture.hear("the second one")
        await fixture.hear("/resume")
        asked = (await fixture.people.messages(ANN))[-1]
        assert asked.buttons
        label = next(label for row in asked.buttons for label, _ in row if "first" in label)
        await fixture.people.press(ANN, ANN, asked.message_id, label)
        await until(lambda: fixture.emulator.calls["answerCallbackQuery"] == 1, "the press is confirmed")
        await fixture.rest()
        assert (await fixture.session()).id == first


async def test_a_dangerous_tool_asks_by_buttons_and_only_an_admin_can_allow_it(tmp_path: Path) -> None:
    done: list[str] = []

    async def wipe(arguments: Mapping[str, Any], use: ToolUse) -> str:
        done.append(str(arguments["what"]))
        return "wiped"

    schema = ToolSchema("wipe", "Wipe something.", {"type": "object", "properties": {"what": {"type": "string"}}})

    def script(request: Any) -> Say:
        last = request.messages[-1]
        if last.role == "tool":
            return Say(f"It came to: {last.content}")
        return Say("", (ToolCall("c1", "wipe", '{"what": "disk"}'),))

    tools = (Tool(schema, wipe, dangerous=True),)
    account = {"admins": (str(ANN),), "trigger": "all", "groups": "shared"}
    async with (
        ModelServer(script) as server,
        telegram_gateway(tmp_path, server, account=account, tools=tools) as fixture,
    ):
        group = await fixture.people.group(GROUP)
        await fixture.people.say(ANN, "wipe the disk", chat=group)
        await fixture.people.until(lambda: any("May I" in text for text in fixture.people.texts(group)), "a question")
        asked = (await fixture.people.messages(group))[-1]
        assert [label for row in asked.buttons for label, _ in row] == ["Allow", "Deny"]
        await fixture.people.press(BOB, group, asked.message_id, "Allow")
        await until(lambda: fixture.emulator.calls["answerCallbackQuery"] == 1, "his press is taken")
        assert not done
        await fixture.people.press(ANN, group, asked.message_id, "Allow")
        await fixture.people.until(lambda: "It came to: wiped" in fixture.people.texts(group), "it is done")
        assert done == ["disk"]
        await fixture.rest()
        now = next(one for one in await fixture.people.messages(group) if one.message_id == asked.message_id)
        assert not now.buttons, "the buttons are still shown"


@pytest.mark.parametrize("char", ["x", "<", "&", "`", "😀", "日"])
async def test_a_call_can_not_hide_the_end_of_its_arguments_from_the_user(tmp_path: Path, char: str) -> None:
    """The largest call that is shown reaches the chat in full, whatever its characters cost there."""
    wanted = char * 2_970

    async def wipe(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "wiped"

    def script(request: Any) -> Say:
        last = request.messages[-1]
        call = ToolCall("c1", "wipe", msgspec.json.encode({"what": wanted, "z": "end"}).decode())
        return Say("Done.") if last.role == "tool" else Say("", (call,))

    tools = (Tool(ToolSchema("wipe", "Wipe something.", {"type": "object"}), wipe, dangerous=True),)
    account = {"admins": (str(ANN),)}
    async with (
        ModelServer(script) as server,
        telegram_gateway(tmp_path, server, account=account, tools=tools) as fixture,
    ):
        await fixture.people.say(ANN, "wipe the disk")
        await fixture.people.until(lambda: any("/approve" in text for text in fixture.people.texts(ANN)), "a question")
        shown = "".join(fixture.people.texts(ANN))
        assert shown.count(char) >= len(wanted)
        assert '"z": "end"' in shown
        assert (await fixture.people.messages(ANN))[-1].buttons, "the buttons come after the whole call"


# --- Formatting ------------------------------------------------------------------------------------------------------


async def test_markdown_is_shown_with_its_format(tmp_path: Path) -> None:
    async with model(BOLD) as server, telegram_gateway(tmp_path, server) as fixture:
        assert await fixture.hear("hello") == ["A bold word, and snake_case."]
        shown = (await fixture.people.messages(ANN))[-1]
        assert [entity.type for entity in shown.entities] == ["bold"]


async def test_markup_that_telegram_refuses_is_sent_as_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everthread.adapters.platforms.telegram import sender as chats

    monkeypatch.setattr(chats, "render", lambda text: f"*{text}")
    async with model(BOLD) as server, telegram_gateway(tmp_path, server) as fixture:
        assert await fixture.hear("hello") == [BOLD]


async def test_refused_markup_of_edits_and_captions_is_sent_as_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everthread.adapters.platforms.telegram import sender as module

    async with TelegramEmulator(TOKEN, limits=False) as emulator, TelegramUsers(emulator.base_url) as people:
        await introduce(emulator.base_url, ANN)
        platform, to = platform_at(emulator, tmp_path), Address(str(ANN))
        message_id = await platform.send(Outbound("t1.0", to, "first"))
        monkeypatch.setattr(module, "render", lambda text: f"*{text}")
        await platform.edit(to, message_id, BOLD)
        await platform.send(Outbound("t2.0", to, BOLD, files=(File("cat.png", PICTURE),)))
        shown = [one for one in await people.messages(ANN) if one.is_bot]
        assert [one.text for one in shown] == [BOLD, BOLD]
        assert shown[1].file is not None
        assert shown[1].file.kind == "photo"
        assert emulator.refused == {"400": 2}
        await platform.aclose()


async def test_a_long_answer_with_emoji_is_split_into_parts_that_fit(tmp_path: Path) -> None:
    async with model("🙂 ok " * 1000) as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.people.say(ANN, "smile")
        await fixture.people.until(lambda: "".join(fixture.people.texts(ANN)).count("🙂") == 1000, "all of it")
        assert len(fixture.people.texts(ANN)) == 2


# --- Files -----------------------------------------------------------------------------------------------------------


async def test_a_photo_and_a_document_are_stored_privately_and_shown_to_the_model(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        photo = wire.AttachedFile("photo", PICTURE)
        await fixture.people.say(ANN, "look", file=photo)
        await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 1, "an answer")
        note = wire.AttachedFile("document", b"milk and bread", "../shopping list.txt", "text/plain")
        await fixture.people.say(ANN, "", file=note)
        await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 2, "an answer")
        picture, listed = fixture.people.texts(ANN)
        assert "look" in picture
        assert "[image: photo.jpg" in picture
        assert "milk and bread" in listed
        kept = sorted((tmp_path / "media" / "telegram").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert [path.read_bytes() for path in kept] == [photo.content, note.content]
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
        assert stat.S_IMODE((tmp_path / "media").stat().st_mode) == 0o700
        assert all(str(path) in text for path, text in zip(kept, (picture, listed), strict=True))


async def test_files_of_unknown_users_are_not_fetched(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server, account={"allow_all": False}) as fixture:
        await fixture.people.say(ANN, "look", file=wire.AttachedFile("photo", PICTURE))
        await fixture.people.until(lambda: fixture.people.texts(ANN), "a code")
        assert fixture.emulator.calls["getFile"] == 0
        assert not (tmp_path / "media").exists()


async def test_a_file_that_cannot_be_fetched_is_reported(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.people.fault(wire.Fault("refuse", "getFile"))
        await fixture.people.say(ANN, "look", file=wire.AttachedFile("photo", PICTURE))
        await fixture.people.until(lambda: fixture.people.texts(ANN), "an answer")
        assert "(it could not be fetched)" in fixture.people.texts(ANN)[0]


async def test_a_file_that_is_too_large_is_not_fetched(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN) as emulator:
        platform = platform_at(emulator, tmp_path)
        with pytest.raises(PlatformRefused, match="larger than 20 MB"):
            await platform.fetch(Media("file", size=20_000_001, handle="x"), 20_000_000)
        assert emulator.calls["getFile"] == 0
        await platform.aclose()


async def test_fetch_reads_no_more_than_the_given_size(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, TelegramUsers(emulator.base_url) as people:
        await people.say(ANN, "look", file=wire.AttachedFile("document", b"x" * 5000, "list.txt", "text/plain"))
        (said,) = await people.messages(ANN)
        assert said.file is not None
        platform = platform_at(emulator, tmp_path)
        media = Media("file", handle=said.file.file_id)
        assert await platform.fetch(media, 5000) == b"x" * 5000
        with pytest.raises(PlatformRefused, match="larger than 4999 bytes"):
            await platform.fetch(media, 4999)
        await platform.aclose()


async def test_files_are_sent_with_their_own_type(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, TelegramUsers(emulator.base_url) as people:
        await introduce(emulator.base_url, ANN)
        platform = platform_at(emulator, tmp_path)
        to = Address(str(ANN))
        files = (File("cat.png", PICTURE), File("hello.ogg", b"OggS"), File("notes.md", b"notes"), File("no.png", b"x"))
        for number, file in enumerate(files):
            await platform.send(Outbound(f"t{number}.0", to, "**Here.**", files=(file,)))
        await platform.send(Outbound("t9.0", to, "x" * 2000, files=(File("a.md", b"a"), File("b.md", b"b"))))
        shown = [one for one in await people.messages(ANN) if one.is_bot]
        assert [one.file.kind if one.file else None for one in shown] == [
            *("photo", "voice", "document", "document"),
            *(None, "document", "document"),
        ]
        assert [one.text for one in shown[:4]] == ["Here."] * 4
        assert shown[2].file is not None
        assert await people.file(shown[2].file.file_id) == b"notes"
        await platform.aclose()


async def test_an_export_is_sent_as_a_document(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.hear("remember this")
        await fixture.hear("/export")
        shown = (await fixture.people.messages(ANN))[-1]
        assert shown.file is not None
        assert b"remember this" in await fixture.people.file(shown.file.file_id)


# --- Voice messages --------------------------------------------------------------------------------------------------


async def test_a_voice_message_is_transcribed(tmp_path: Path) -> None:
    async with TranscriptionServer() as ears, model() as server:
        endpoints = {"ears": ProviderSettings("openai_compat", ears.base_url, "KEY")}
        speech = GatewaySettings(transcription_model="ears/whisper-1")
        async with telegram_gateway(tmp_path, server, endpoints=endpoints, gateway=speech) as fixture:
            await fixture.people.say(ANN, "", file=VOICE)
            await fixture.people.until(
                lambda: fixture.people.texts(ANN) == ["You said: [spoken] buy milk"], "an answer"
            )
        assert ears.asked == [("whisper-1", VOICE.content, "Bearer secret-key")]


async def test_without_a_transcription_endpoint_the_user_is_asked_to_write(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        said = await fixture.people.say(ANN, "", file=VOICE)
        await fixture.people.until(lambda: fixture.people.texts(ANN) == [NO_TRANSCRIBER], "a notice")
        assert said.update_id is not None
        await fixture.people.redeliver(said.update_id)
        assert await fixture.hear("hello") == ["You said: hello"], "the voice message was sent to the model"
        assert not any(b"spoken" in request or b"voice" in request for request in server.requests)


async def test_a_failed_transcription_is_reported(tmp_path: Path) -> None:
    async with TranscriptionServer(500) as ears, model() as server:
        endpoints = {"ears": ProviderSettings("openai_compat", ears.base_url)}
        speech = GatewaySettings(transcription_model="ears/whisper-1")
        async with telegram_gateway(tmp_path, server, endpoints=endpoints, gateway=speech) as fixture:
            await fixture.people.say(ANN, "", file=VOICE)
            await fixture.people.until(lambda: fixture.people.texts(ANN) == [NOT_TRANSCRIBED], "a notice")


# --- No losses, no duplicates ----------------------------------------------------------------------------------------


async def test_messages_pending_at_a_cold_start_are_answered(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with TelegramUsers(emulator.base_url) as people:
            for number in range(3):
                await people.say(ANN, f"early {number}")
        async with telegram_gateway(tmp_path, server, emulator) as fixture:
            wanted = [f"You said: early {number}" for number in range(3)]
            await fixture.people.until(lambda: fixture.people.texts(ANN) == wanted, "all of them")
            await until(lambda: not emulator.state.updates.pending, "all are acknowledged")


async def test_an_update_is_acknowledged_only_after_it_is_stored(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN) as emulator, TelegramUsers(emulator.base_url) as people:
        platform = platform_at(emulator, tmp_path)
        taking, may_end = asyncio.Event(), asyncio.Event()

        async def take(update: object) -> None:
            taking.set()
            await may_end.wait()

        running = asyncio.ensure_future(platform.run(take))
        await people.say(ANN, "hello")
        await taking.wait()
        await asyncio.sleep(0.2)
        assert len((await people.dump()).pending) == 1
        may_end.set()
        await until(lambda: not emulator.state.updates.pending, "acknowledged")
        running.cancel()
        await asyncio.wait({running})
        await platform.aclose()


@pytest.mark.parametrize("kind", ["duplicate", "reorder"])
async def test_duplicated_or_reordered_updates_are_answered_once_and_in_order(tmp_path: Path, kind: Any) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with TelegramUsers(emulator.base_url) as people:
            await people.fault(wire.Fault(kind))
            said = [await people.say(ANN, f"word {number}") for number in range(3)]
        async with telegram_gateway(tmp_path, server, emulator) as fixture:
            wanted = [f"You said: word {number}" for number in range(3)]
            await fixture.people.until(lambda: fixture.people.texts(ANN) == wanted, "all of them")
            for one in said:
                await fixture.people.redeliver(one.update_id or 0)
            assert await fixture.hear("last") == ["You said: last"]


async def test_a_retry_delay_from_telegram_is_respected(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.people.fault(wire.Fault("busy", "sendMessage", times=1, seconds=1.0))
        began = asyncio.get_running_loop().time()
        assert await fixture.hear("hello") == ["You said: hello"]
        assert asyncio.get_running_loop().time() - began >= 1.0


# --- Webhook ---------------------------------------------------------------------------------------------------------


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


async def test_a_webhook_receives_all_updates_and_refuses_requests_without_the_secret(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/telegram"
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with TelegramUsers(emulator.base_url) as people:
            await people.say(ANN, "early")
        account = {"webhook_url": url, "webhook_port": port}
        async with telegram_gateway(tmp_path, server, emulator, account=account) as fixture:
            await fixture.people.until(lambda: fixture.people.texts(ANN) == ["You said: early"], "what waited")
            assert await fixture.hear("hello") == ["You said: hello"]
            async with aiohttp.ClientSession() as http:
                for headers in ({}, {"X-Telegram-Bot-Api-Secret-Token": "wrong"}):
                    async with http.post(url, json={"update_id": 1}, headers=headers) as response:
                        assert response.status == 403
            assert (await fixture.people.dump()).webhook_url == url
        async with telegram_gateway(tmp_path, server, emulator) as fixture:
            assert await fixture.hear("polled") == ["You said: polled"]
            assert (await fixture.people.dump()).webhook_url == ""


# --- One bot, one gateway --------------------------------------------------------------------------------------------


async def test_two_homes_on_one_machine_cannot_share_a_bot(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN, limits=False) as emulator, model() as server:
        async with telegram_gateway(tmp_path / "one", server, emulator) as first:
            async with telegram_gateway(tmp_path / "two", server, emulator) as second:
                state = second.gateway.states["telegram"]
                await until(lambda: "another gateway on this machine" in state.problem, "it is told apart")
                assert not state.up
                assert await first.hear("hello") == ["You said: hello"]
        async with telegram_gateway(tmp_path / "two", server, emulator) as second:
            assert await second.hear("hello") == ["You said: hello"], "the lock was not released"


async def test_another_program_that_polls_the_bot_is_reported(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        state = fixture.gateway.states["telegram"]
        await fixture.hear("hello")
        url = f"{fixture.emulator.base_url}/bot{TOKEN}/getUpdates"
        async with aiohttp.ClientSession() as http, http.post(url, json={"timeout": 0}) as response:
            await response.read()
        await until(lambda: "another program reads this bot's messages" in state.problem, "it is told of")
        assert await fixture.hear("still there?") == ["You said: still there?"]


async def test_a_rejected_token_is_reported_without_showing_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with TelegramEmulator("42:another") as emulator, model() as server:
        runtime = Runtime(settings_of(tmp_path, server, emulator.base_url))
        async with runtime:
            await runtime.ready()
            gateway = runtime.gateway()
            await gateway.start()
            state = gateway.states["telegram"]
            await until(lambda: state.problem, "a problem")
            await gateway.stop(0.1)
            assert "its token is not accepted" in state.problem
            assert TOKEN not in state.problem
    assert TOKEN.partition(":")[2] not in caplog.text


async def test_a_button_with_too_much_data_is_left_out(tmp_path: Path) -> None:
    async with TelegramEmulator(TOKEN) as emulator, TelegramUsers(emulator.base_url) as people:
        await introduce(emulator.base_url, ANN)
        platform = platform_at(emulator, tmp_path)
        buttons = (Button("Long", "/x " + "y" * 100), Button("Short", "/ok"))
        await platform.send(Outbound("t1.0", Address(str(ANN)), "Which?", buttons))
        assert (await people.messages(ANN))[-1].buttons == ((("Short", "/ok"),),)
        await platform.aclose()


async def test_several_users_write_at_the_same_time(tmp_path: Path) -> None:
    async with model() as server, telegram_gateway(tmp_path, server) as fixture:
        await fixture.people.say_all([wire.UserMessage(user, "hi") for user in (ANN, BOB)])
        await fixture.people.until(
            lambda: fixture.people.texts(ANN) == fixture.people.texts(BOB) == ["You said: hi"], "two answers"
        )
