"""A home with sessions of two owners: branches, continuations and a resumed session."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, Compress, New, Resume, Rewind
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey, ToolCall
from everthread.lifecycle import NoteChange
from everthread.ports.memory import MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")


CHAT = SessionKey.parse("agent:main:telegram:dm:42")


DAY_S = 86_400.0


class PastClock:
    """Clock that runs `ago_s` seconds in the past."""

    def __init__(self, ago_s: float) -> None:
        self._ago_s = ago_s

    def now(self) -> float:
        return time.time() - self._ago_s

    def elapsed(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Listens(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "listens"


@dataclass(frozen=True)
class SampleHome:
    """Session Lisbon (2 turns), its branch (1 turn, 1 undone) and continuation; old sessions: taxes, chat."""

    home: Path
    lisbon: str
    branch: str
    tip: str
    taxes: str
    chat: str


async def say(runtime: Runtime, key: SessionKey, owner: str, text: str, *, tool: bool = False) -> None:
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ticket = await runtime.lifecycle.begin_turn(key)
    assert ticket is not None
    messages = [Message(Role.USER, text)]
    if tool:
        messages.append(Message(Role.ASSISTANT, "", (ToolCall("c1", "weather", '{"city": "Lisbon"}'),), reasoning="hm"))
        messages.append(Message(Role.TOOL, "sunny\n" + "and warm " * 30, tool_call_id="c1", name="weather"))
    messages.append(Message(Role.ASSISTANT, f"about {text}: yes"))
    await runtime.lifecycle.commit_turn(ticket, messages, "yes")


async def open_session(runtime: Runtime, key: SessionKey, boundary: Any, owner: str) -> str:
    ref = (await runtime.lifecycle.cross(key, boundary, owner=owner)).ref
    assert ref is not None
    return ref.session_id


async def fill_home(home: Path) -> SampleHome:
    async with Runtime(Settings(home), providers=[Listens()], clock=PastClock(200 * DAY_S)) as runtime:
        await runtime.start()
        taxes = await open_session(runtime, TERMINAL, New("Taxes"), "me")
        await say(runtime, TERMINAL, "me", "how much tax")
        chat = await open_session(runtime, CHAT, New(), "telegram:42")
        await say(runtime, CHAT, "telegram:42", "konnichiwa")
        await runtime.lifecycle.cross(CHAT, New(), owner="telegram:42")
        lisbon = await open_session(runtime, TERMINAL, New("Trip to Lisbon"), "me")
        assert await runtime.drain()
    async with Runtime(Settings(home), providers=[Listens()]) as runtime:
        await runtime.start()
        await say(runtime, TERMINAL, "me", "hello")
        await say(runtime, TERMINAL, "me", "is it warm", tool=True)
        branch = await open_session(runtime, TERMINAL, Branch(), "me")
        await say(runtime, TERMINAL, "me", "by train")
        await say(runtime, TERMINAL, "me", "by plane")
        await runtime.lifecycle.cross(TERMINAL, Rewind(1), owner="me")
        here = await runtime.lifecycle.current(TERMINAL)
        assert here is not None
        tip = await open_session(runtime, TERMINAL, Compress(branch, here.generation, "a trip by train", 2), "me")
        await open_session(runtime, TERMINAL, Resume(lisbon), "me")
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "likes trains"), owner="me")
        assert await runtime.drain()
    return SampleHome(home, lisbon, branch, tip, taxes, chat)


@pytest.fixture(scope="session")
def sample_original(tmp_path_factory: pytest.TempPathFactory) -> SampleHome:
    return asyncio.run(fill_home(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def sample(sample_original: SampleHome, tmp_path: Path) -> SampleHome:
    shutil.copytree(sample_original.home, tmp_path / "home")
    ids = (
        sample_original.lisbon,
        sample_original.branch,
        sample_original.tip,
        sample_original.taxes,
        sample_original.chat,
    )
    return SampleHome(tmp_path / "home", *ids)
