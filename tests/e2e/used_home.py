"""A home with some history, and commands run on it as real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, New
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import Capability, MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")
CHAT = SessionKey.parse("agent:main:telegram:dm:42")


class Picky(MemoryProvider):
    """Memory provider that rejects turns containing "spicy" and cannot forget."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        if "spicy" in user:
            raise Rejected(self.name, "not\nthat\x1b[31m")


class Polite(MemoryProvider):
    """Memory provider that supports forgetting."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "polite"
        self.capabilities = Capability.FORGET
        self.asked: list[str] = []

    async def forget(self, scope: Any, **_: Any) -> None:
        self.asked.append(scope.value)


@dataclass(frozen=True)
class UsedHome:
    """A home with some history: Lisbon (2 turns, one parked), its branch, a chat of another owner, a note."""

    home: Path
    lisbon: str
    branch: str
    chat: str
    note: str


async def _say(runtime: Runtime, key: SessionKey, owner: str, text: str) -> None:
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ticket = await runtime.lifecycle.begin_turn(key)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, text), Message(Role.ASSISTANT, "yes")], "yes")


async def create_used_home(home: Path) -> UsedHome:
    async with Runtime(Settings(home), providers=[Picky()]) as runtime:
        await runtime.start()
        opened = [(await runtime.lifecycle.cross(TERMINAL, New("Trip to Lisbon"), owner="local")).ref]
        await _say(runtime, TERMINAL, "local", "hello")
        await _say(runtime, TERMINAL, "local", "something spicy")
        opened.append((await runtime.lifecycle.cross(TERMINAL, Branch(), owner="local")).ref)
        opened.append((await runtime.lifecycle.cross(CHAT, New("日本旅行"), owner="telegram:42")).ref)
        await _say(runtime, CHAT, "telegram:42", "konnichiwa")
        note = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes mangoes")
        note_id = (await runtime.lifecycle.write_note(note, owner="local")).note_id
        assert await runtime.drain()
    lisbon, branch, chat = (ref.session_id if ref else "" for ref in opened)
    return UsedHome(home, lisbon, branch, chat, note_id)


def everthread(
    *arguments: str, home: Path | str | None = None, answer: str = "", env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("EVERTHREAD_HOME", "XDG_DATA_HOME")}
    given = [] if home is None else ["--home", str(home)]
    return subprocess.run(
        [sys.executable, "-m", "everthread", *given, *arguments],
        capture_output=True,
        text=True,
        input=answer,
        env=clean | (env or {}),
        timeout=18,
        check=False,
        **more,
    )


def printed(*arguments: str, home: Path) -> Any:
    """Run a command that must succeed and return its JSON output."""
    done = everthread(*arguments, "--json", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def titles_in(home: Path) -> set[str]:
    return {session["title"] for session in printed("sessions", "list", home=home)}


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("everthread: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n")
    for word in words:
        assert word in done.stderr


@contextmanager
def write_lock(home: Path) -> Iterator[None]:
    """Hold the write lock of the database, as another program would during a write."""
    connection = sqlite3.connect(home / "everthread.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()
