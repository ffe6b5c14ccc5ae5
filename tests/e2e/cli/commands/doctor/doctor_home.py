"""A healthy home, and `everthread doctor` run on it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.model_endpoint import model_endpoint

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role, SessionKey
from everthread.lifecycle import NoteChange
from everthread.ports.memory import MemoryProvider
from everthread.testing.model_server.server import ModelServer

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")


ME = "me"


async def say_hello(runtime: Runtime) -> None:
    await runtime.lifecycle.accept(Inbound(TERMINAL, ME, "hello"))
    ticket = await runtime.lifecycle.begin_turn(TERMINAL)
    assert ticket is not None
    await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello"), Message(Role.ASSISTANT, "yes")], "yes")


async def fill_home(home: Path, *providers: MemoryProvider) -> None:
    async with Runtime(Settings(home), providers=providers) as runtime:
        await runtime.start()
        await runtime.lifecycle.cross(TERMINAL, New("Tea"), owner=ME)
        await runtime.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "is called Ana"), owner=ME)
        assert await runtime.sync_notes(ME) == ""
        await say_hello(runtime)
        assert await runtime.drain()


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with model_endpoint(models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def healthy_original(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Path:
    home = tmp_path_factory.mktemp("original") / "home"
    asyncio.run(fill_home(home))
    config = home / "config.toml"
    config.write_text(f'model = "mine/good"\n[providers.mine]\nbase_url = "{server.base_url}"\n')
    (home / ".env").write_text("A=1\n")
    (home / ".env").chmod(0o600)
    return home


@pytest.fixture
def home(healthy_original: Path, tmp_path: Path) -> Path:
    shutil.copytree(healthy_original, tmp_path / "home")
    return tmp_path / "home"


def doctor(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), "doctor", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=inherited | variables,
        timeout=18,
        check=False,
    )
    assert done.stderr == ""
    return done


def failed(home: Path, *arguments: str) -> dict[str, tuple[str, str]]:
    """Run `doctor --json` and return message and fix of each failed check."""
    done = doctor(home, *arguments, "--json")
    told = json.loads(done.stdout)
    found = {check["check"]: (check["says"], check["fix"]) for check in told["checks"] if check["well"] is False}
    assert done.returncode == (1 if found else 0)
    assert told["well"] is (not found)
    return found


def says(home: Path, *arguments: str) -> dict[str, str]:
    """Run `doctor --json` and return the message of each check."""
    told = json.loads(doctor(home, *arguments, "--json").stdout)
    return {check["check"]: check["says"] for check in told["checks"]}


def in_home(home: Path, work: Any) -> None:
    async def change() -> None:
        async with Runtime(Settings(home)) as runtime:
            await work(runtime)

    asyncio.run(change())
