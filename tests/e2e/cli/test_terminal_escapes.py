"""Text of a model, a tool or a guest cannot send control sequences to the owner's terminal, by whatever verb."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.terminal_screen import TerminalScreen

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.store.incidents import Incident
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

# Set the title, write the clipboard, clear the screen, by ESC and by a C1 character, and reorder the text.
HOSTILE = "see \x1b]0;owned\x07 \x1b]52;c;b3duZWQ=\x07 \x1b[2J \x9b2J \x9d0;x\x9c \x08\x08 \u202eevil\u202c end"
KEY = SessionKey.parse("agent:main:cli:dm:1")
FORBIDDEN = (b"\x1b]", b"\x1b[2J", b"\x07", b"\x08", "\x9b".encode(), "\x9d".encode(), "\u202e".encode())


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: Say(HOSTILE)).in_thread() as server:
        yield server


async def fill(home: Path) -> str:
    async with Runtime(Settings(home)) as runtime:
        await runtime.start()
        ref = (await runtime.lifecycle.cross(KEY, New(), owner="me")).ref
        assert ref is not None
        await runtime.lifecycle.accept(Inbound(KEY, "me", HOSTILE))
        claim = await runtime.lifecycle.begin_turn(KEY)
        assert claim is not None
        messages = [Message(Role.USER, HOSTILE), Message(Role.ASSISTANT, HOSTILE)]
        await runtime.lifecycle.commit_turn(claim, messages, HOSTILE)
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, HOSTILE), owner="me")
        incident = Incident(runtime.clock.now(), "forget", None, HOSTILE)
        await runtime.store.write(lambda uow: uow.incidents.add(incident))
    return ref.session_id


@pytest.fixture
def home(tmp_path: Path, model: ModelServer) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'model = "mine/one"\n[providers.mine]\nbase_url = "{model.base_url}"\n')
    SkillFolders(home / "skills").write(SkillText("tea", "How to make tea.", HOSTILE))
    return home


def on_a_terminal(home: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    command = [sys.executable, "-m", "everthread", "--home", str(home), *arguments]
    with TerminalScreen(command, environment, columns=200) as screen:
        screen.ended()
        return bytes(screen.raw)


def assert_harmless(raw: bytes, what: str) -> None:
    assert [code for code in FORBIDDEN if code in raw] == [], what


@pytest.mark.parametrize("arguments", [("-p", "hello"), ("-v", "-p", "hello"), ("-p", "hello", "--json")], ids=" ".join)
def test_a_model_cannot_control_the_terminal_of_one_prompt(home: Path, arguments: tuple[str, ...]) -> None:
    raw = on_a_terminal(home, *arguments)
    assert b"evil" in raw
    assert_harmless(raw, str(arguments))


@pytest.mark.timeout(60)
def test_stored_text_cannot_control_the_terminal_of_any_verb(home: Path) -> None:
    session = asyncio.run(fill(home))
    shown = 0
    for arguments in (
        ("sessions", "list"),
        ("sessions", "show", session),
        ("sessions", "tree"),
        ("sessions", "export", session),
        ("memory", "list"),
        ("memory", "log"),
        ("recall", "see end"),
        ("skills", "list"),
        ("skills", "show", "tea"),
        ("journal", "status"),
        ("boundaries",),
        ("logs",),
        ("forget", session, "--yes"),
    ):
        raw = on_a_terminal(home, *arguments)
        shown += b"evil" in raw
        assert_harmless(raw, str(arguments))
    assert shown >= 5, "most of these print the text"
