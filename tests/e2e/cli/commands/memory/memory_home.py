"""A home with notes and a memory provider that rejects entries."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.errors import Rejected
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import MemoryProvider

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")


ME = "me"


class Picky(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "picky"

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        raise Rejected(self.name, "not that")


@dataclass(frozen=True)
class SampleHome:
    home: Path
    session: str
    tea: str
    """The agent's note, changed once."""
    name: str
    """A note on the user, written by hand."""


async def fill_home(home: Path) -> SampleHome:
    async with Runtime(Settings(home), providers=[Picky()]) as runtime:
        await runtime.start()
        ref = (await runtime.lifecycle.cross(TERMINAL, New("Tea"), owner=ME)).ref
        assert ref is not None
        await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "I like oolong from Taiwan"))
        ticket = await runtime.lifecycle.begin_turn(TERMINAL)
        assert ticket is not None
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "likes green tea", turn_id=ticket.turn_id)
        tea = (await runtime.lifecycle.write_note(change, owner=ME, ref=ticket.ref)).note_id
        change = NoteChange(NoteAction.REPLACE, NoteTarget.MEMORY, "likes oolong", tea, ticket.turn_id)
        await runtime.lifecycle.write_note(change, owner=ME, ref=ticket.ref)
        said = [Message(Role.USER, "I like oolong from Taiwan"), Message(Role.ASSISTANT, "noted")]
        await runtime.lifecycle.commit_turn(ticket, said, "noted")
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, "is called Ana")
        name = (await runtime.lifecycle.write_note(change, owner=ME)).note_id
        assert await runtime.sync_notes(ME) == ""
        assert await runtime.drain()
    return SampleHome(home, ref.session_id, tea, name)


@pytest.fixture(scope="session")
def sample_original(tmp_path_factory: pytest.TempPathFactory) -> SampleHome:
    return asyncio.run(fill_home(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def sample(sample_original: SampleHome, tmp_path: Path) -> SampleHome:
    shutil.copytree(sample_original.home, tmp_path / "home")
    return SampleHome(tmp_path / "home", sample_original.session, sample_original.tea, sample_original.name)


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=inherited | variables,
        timeout=18,
        check=False,
    )


def printed(home: Path, *arguments: str, **variables: str) -> Any:
    done = everthread(home, *arguments, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
