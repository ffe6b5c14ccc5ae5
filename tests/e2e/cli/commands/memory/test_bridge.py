"""`everthread memory bridge`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.hermes_plugins import PLUGINS, PluginBehaviour

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, Role, SessionKey

TERMINAL = SessionKey.parse("agent:main:cli:dm:1")


pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hermes(tmp_path: Path) -> Path:
    """Home of Hermes Agent with plugins and an environment file."""
    home = tmp_path / "hermes"
    home.mkdir()
    (home / "plugins").symlink_to(PLUGINS)
    (home / ".env").write_text(f"DIARY_WAYS={tmp_path / 'ways.json'}\n")
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'[memory.hermes]\npython = "{sys.executable}"\n')
    return home


def ran(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HERMES_HOME": str(home.parent / "hermes")},
        timeout=50,
        check=False,
    )


def read(done: subprocess.CompletedProcess[str]) -> Any:
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_installed_plugins_are_listed(home: Path, hermes: Path, tmp_path: Path) -> None:
    PluginBehaviour(tmp_path / "ways.json").set(unset=True)
    found = {one["name"]: one for one in read(ran(home, "memory", "bridge", "list", "--json"))["plugins"]}
    assert {name: one["available"] for name, one in found.items()} == {"hermes:diary": False, "hermes:old": True}
    assert found["hermes:diary"]["description"] == "Writes down what it is told, and fails on request."
    shown = ran(home, "memory", "bridge", "list").stdout
    assert "hermes:old" in shown
    assert f"2 plugins in {sys.executable}" in shown


def test_a_plugin_is_tested_and_leaves_no_files(home: Path, hermes: Path) -> None:
    done = ran(home, "memory", "bridge", "test", "diary", "--json")
    tried = read(done)
    assert (done.returncode, tried["ok"], tried["plugin"]) == (0, True, "hermes:diary"), tried
    said = {step["step"]: step["said"] for step in tried["steps"]}
    assert said["brings tools"] == "diary_search"
    assert "Skarven" in said["recalls"]
    assert (
        "To use it: everthread setup memory builtin hermes:diary"
        in ran(home, "memory", "bridge", "test", "diary").stdout
    )
    assert not [*home.glob("**/diary.jsonl"), *hermes.glob("*.jsonl")]


def test_problems_of_a_plugin_are_reported_with_a_fix(home: Path, hermes: Path, tmp_path: Path) -> None:
    ways = PluginBehaviour(tmp_path / "ways.json")
    ways.set(unset=True)
    done = ran(home, "memory", "bridge", "test", "hermes:diary")
    assert done.returncode == 1
    assert f"FAILED  starts: hermes:diary: the plugin is not configured; its settings belong into {hermes} " in (
        done.stdout
    )
    ways.set(unset=False, in_thread=True, fail=1)
    steps = read(ran(home, "memory", "bridge", "test", "hermes:diary", "--json"))["steps"]
    assert {step["step"]: step["said"] for step in steps if not step["ok"]} == {
        "is told of a session": "hermes:diary: Diary sync failed: nobody there"
    }
    done = ran(home, "memory", "bridge", "test", "nosuch")
    assert (done.returncode, "no memory plugin 'nosuch'; available: diary, old" in done.stdout) == (1, True)


def test_without_an_environment_the_next_step_is_printed(home: Path, hermes: Path) -> None:
    (home / "config.toml").write_text("")
    done = ran(home, "memory", "bridge", "list")
    assert (done.returncode, done.stdout) == (78, "")
    assert "run: everthread setup memory builtin hermes:holographic, or name an interpreter" in done.stderr


def test_a_plugin_can_be_chosen_and_receives_earlier_sessions(home: Path, hermes: Path) -> None:
    asyncio.run(lived(home))
    done = ran(home, "setup", "memory", "builtin", "hermes:diary", "--set", "hermes.people=each", "--json")
    assert read(done)["health"] == {"hermes:diary": "ok"}
    assert tomllib.loads((home / "config.toml").read_text())["memory"] == {
        "providers": ["builtin", "hermes:diary"],
        "hermes": {"python": sys.executable, "people": "each"},
    }
    copied = read(ran(home, "memory", "copy", "--to", "hermes:diary", "--yes", "--json"))
    assert (copied["turns"], copied["left"]) == (2, 0)
    lines = [json.loads(line) for line in (home / "providers/hermes-diary/home/diary.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines if line["kind"] == "turn"] == ["I keep bees Good.", "I paint hives Good."]
    assert len({line["session"] for line in lines if line["kind"] == "turn"}) == 2
    [status] = [
        one for one in read(ran(home, "memory", "status", "--json"))["providers"] if one["provider"] == "hermes:diary"
    ]
    assert (status["waiting"], status["parked"], status["health"]) == (0, 0, "ok")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["setup", "memory", "hermes"], 2, "give a plugin of Hermes Agent, such as hermes:holographic"),
        (["setup", "memory", "hermes:no:such"], 2, "not the name of a memory provider"),
        (["setup", "memory", "hermes:diary", "--set", "hermes.people=all"], 2, "must be one of one, each"),
        (["memory", "bridge", "test", "hermes:../../x"], 78, "not the name of a memory provider"),
        (["setup", "memory", "hermes:nosuch"], 75, "no memory plugin 'nosuch'"),
    ],
)
def test_an_invalid_choice_is_reported_and_nothing_is_written(
    home: Path, hermes: Path, arguments: list[str], code: int, words: str
) -> None:
    before = (home / "config.toml").read_text()
    done = ran(home, *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert (home / "config.toml").read_text() == before


async def lived(home: Path) -> None:
    """Create two sessions that were not delivered to any plugin."""
    async with Runtime(load(str(home), {})) as runtime:
        for words in ("I keep bees", "I paint hives"):
            await runtime.lifecycle.cross(TERMINAL, New(), owner=runtime.settings.owner)
            await runtime.lifecycle.accept(Inbound(TERMINAL, runtime.settings.owner, words))
            ticket = await runtime.lifecycle.begin_turn(TERMINAL)
            assert ticket is not None
            messages = [Message(Role.USER, words), Message(Role.ASSISTANT, "Good.")]
            await runtime.lifecycle.commit_turn(ticket, messages, "Good.")
