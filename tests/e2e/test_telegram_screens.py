"""Screens of conversations on Telegram, stored under `tests/screens/telegram`.

Screens are compared word for word. After an intended change, `EVERTHREAD_SCREENS=write pytest
tests/e2e/test_telegram_screens.py` rewrites them; review them before the commit.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_telegram import FORUM, GROUP, PICTURE, VOICE, TranscriptionServer
from tests.telegram_gateway import ANN, BOB, TelegramGateway, telegram_gateway

from everthread.config.schema import GatewaySettings, ProviderSettings
from everthread.domain.model import ToolCall
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.telegram import protocol as wire

SCREENS = Path(__file__).parents[1] / "screens" / "telegram"
CODE = re.compile(r"(?<=/approve )\w{4}|(?<=/deny )\w{4}")
ID = re.compile(r"\b01[0-9A-Z]{24}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
"""The code of a question, the id of a conversation and the time are others each time."""

RECIPE = """\
# Pancakes

You need **three** eggs, *no* sugar, and a pan (see [the list](https://example.com/pans)).

1. Beat the eggs: 2 * 3 = 6 strokes.
2. Add `flour`.
   - sifted, if you can
   - ~~not~~ with salt

```python
def bake(pan: str) -> None:
    print(f"{pan} is hot!")
```

> Patience is the best spice.

| what | how much |
|---|---|
| eggs | 3 |
| milk | 0.25 l |

Enjoy! snake_case and 1_000 stay as they are."""


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the locks that all homes share in the directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def answering(request: Any) -> Say:
    said = [str(message.content) for message in request.messages if message.role == "user"]
    last = request.messages[-1]
    if last.role == "tool":
        return Say("Done: the disk is as good as new.")
    if "title" in str(request.messages[0].content).lower() and len(said) == 1 and "pancakes" in said[0]:
        return Say("Pancakes for breakfast")
    if "pancakes" in said[-1]:
        return Say(RECIPE)
    if "wipe" in said[-1]:
        return Say("", (ToolCall("c1", "wipe", '{"what": "disk"}'),))
    if "slowly" in said[-1]:
        return Say("One word after the other, and **this one** is bold.", chunks=20, delay_s=0.1)
    if "[spoken]" in said[-1]:
        return Say("Milk is on the list.")
    if "[image" in said[-1]:
        return Say("A very small picture: one pixel.")
    return Say("Good to hear from you.")


def show(screen: str, name: str) -> None:
    """Compare a screen with the stored one."""
    path = SCREENS / f"{name}.txt"
    screen = TIME.sub("2026-01-02 03:04", ID.sub("0" * 26, CODE.sub("CODE", screen)))
    if os.environ.get("EVERTHREAD_SCREENS") == "write":
        path.write_text(screen)
    assert screen == path.read_text(), f"differs from {path.name}:\n{screen}"


async def acquainted(fixture: TelegramGateway) -> None:
    await fixture.people.introduce(ANN, "Ann", "ann_example")
    await fixture.people.introduce(BOB, "Bob")


async def titled(fixture: TelegramGateway) -> None:
    """Wait for the title, which a conversation gets a moment after its first answer."""
    for _ in range(500):
        if (await fixture.session()).title:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("there is no title")


async def test_formatting_and_resume_by_a_button(tmp_path: Path) -> None:
    async with ModelServer(answering) as server, telegram_gateway(tmp_path, server) as fixture:
        await acquainted(fixture)
        await fixture.hear("how do I make pancakes?")
        show(await fixture.people.screen(ANN), "format")
        await titled(fixture)
        await fixture.hear("/new")
        await fixture.hear("good morning")
        await titled(fixture)
        await fixture.hear("/resume")
        before = len(fixture.people.texts(ANN))
        asked = (await fixture.people.messages(ANN))[-1]
        await fixture.people.press(ANN, ANN, asked.message_id, asked.buttons[0][0][0])
        await fixture.people.until(lambda: len(fixture.people.texts(ANN)) > before, "an answer to the button")
        await fixture.rest()
        screen = await fixture.people.screen(ANN)
        show(screen[screen.index("│ /new") :], "resume")


async def test_an_approval_question_for_a_dangerous_tool(tmp_path: Path) -> None:
    async def wipe(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "wiped"

    schema = ToolSchema("wipe", "Wipe something.", {"type": "object", "properties": {"what": {"type": "string"}}})
    tools = (Tool(schema, wipe, dangerous=True),)
    account = {"admins": (str(ANN),)}
    async with (
        ModelServer(answering) as server,
        telegram_gateway(tmp_path, server, account=account, tools=tools) as fixture,
    ):
        await acquainted(fixture)
        await fixture.people.say(ANN, "wipe the disk, please")
        await fixture.people.until(lambda: any("May I" in text for text in fixture.people.texts(ANN)), "a question")
        show(await fixture.people.screen(ANN), "approval-asked")
        asked = (await fixture.people.messages(ANN))[-1]
        await fixture.people.press(ANN, ANN, asked.message_id, "Allow")
        await fixture.people.until(
            lambda: any("good as new" in text for text in fixture.people.texts(ANN)), "it is done"
        )
        await fixture.rest()
        show(await fixture.people.screen(ANN), "approval-given")


async def test_an_answer_shown_while_it_is_generated(tmp_path: Path) -> None:
    account = {"stream": True}
    async with ModelServer(answering) as server, telegram_gateway(tmp_path, server, account=account) as fixture:
        await acquainted(fixture)
        await fixture.people.say(ANN, "tell me something, slowly")
        await fixture.people.until(
            lambda: any("bold." in text for text in fixture.people.texts(ANN)), "the whole answer"
        )
        await fixture.rest()
        assert any(one.what == "edited" for one in fixture.people.log)
        await fixture.hear("/title Slow words")
        await fixture.hear("/export")
        show(await fixture.people.screen(ANN), "written")


async def test_a_group_and_a_topic(tmp_path: Path) -> None:
    async with ModelServer(answering) as server, telegram_gateway(tmp_path, server) as fixture:
        await acquainted(fixture)
        group = await fixture.people.group(GROUP)
        await fixture.people.say(BOB, "has anybody seen Ann?", chat=group)
        await fixture.people.say(ANN, "@test_bot, say hello to Bob", chat=group)
        await fixture.people.until(lambda: len(fixture.people.texts(group)) == 1, "an answer")
        answer = fixture.people.sent(group)[0]
        await fixture.people.say(BOB, "hello yourself", chat=group, reply_to=answer.message_id)
        await fixture.people.until(lambda: len(fixture.people.texts(group)) == 2, "another one")
        await fixture.people.say(BOB, "/sessions", chat=group)
        await fixture.people.until(lambda: len(fixture.people.texts(group)) == 3, "a command")
        await fixture.rest()
        show(await fixture.people.screen(group), "group")
        forum = await fixture.people.group(FORUM)
        roses = await fixture.people.open_topic(ANN, forum, "Roses")
        await fixture.people.say(ANN, "@test_bot when do they bloom?", chat=forum, thread=roses)
        await fixture.people.until(lambda: len(fixture.people.texts(forum)) == 1, "an answer there")
        await fixture.rest()
        show(await fixture.people.screen(forum, roses), "topic")


async def test_a_photo_and_a_voice_message(tmp_path: Path) -> None:
    async with TranscriptionServer() as ears, ModelServer(answering) as server:
        endpoints = {"ears": ProviderSettings("openai_compat", ears.base_url, "KEY")}
        speech = GatewaySettings(transcription_model="ears/whisper-1")
        async with telegram_gateway(tmp_path, server, endpoints=endpoints, gateway=speech) as fixture:
            await acquainted(fixture)
            await fixture.people.say(ANN, "what is this?", file=wire.AttachedFile("photo", PICTURE))
            await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 1, "an answer")
            await fixture.people.say(ANN, "", file=VOICE)
            await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 2, "an answer")
            await fixture.rest()
            show(await fixture.people.screen(ANN), "photo-and-voice")


async def test_a_first_visit_and_a_voice_message_without_transcription(tmp_path: Path) -> None:
    async with ModelServer(answering) as server, telegram_gateway(tmp_path, server) as fixture:
        await acquainted(fixture)
        await fixture.hear("/start")
        await fixture.people.say(ANN, "", file=VOICE)
        await fixture.people.until(lambda: len(fixture.people.texts(ANN)) == 2, "a notice")
        await fixture.hear("/status")
        show(await fixture.people.screen(ANN), "first-visit")
