"""`everthread setup memory`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Terminal

KEY = "hush-0123456789"


PROVIDER = """
from everthread.config.provider_settings import Field
from everthread.ports.memory import Capability, MemoryProvider

class Attic(MemoryProvider):
    settings_fields = (
        Field("url", "Its address", "address", required=True),
        Field("boxes", "How many boxes", "whole", default=3, low=1, high=9),
        Field("api_key", "Its key", "secret", default="ATTIC_KEY"),
    )

    def __init__(self):
        super().__init__()
        self.name = "attic"
        self.capabilities = Capability.HEALTH

    async def initialize(self, *, url, boxes, api_key="", **more):
        self.told = url, boxes, api_key

    async def health(self):
        url, boxes, api_key = self.told
        if url.endswith("/fire"):
            raise KeyError("ladder")
        return "ok" if api_key == "hush-0123456789" and boxes < 9 else "it does not know the key"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "attic-1.0.dist-info"
    package.mkdir(parents=True)
    (package.parent / "attic.py").write_text(PROVIDER)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: attic\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[everthread.memory_providers]\nattic = attic:Attic\n")
    path = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.delenv("ATTIC_KEY", raising=False)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("# mine\n[limits]\nturn_s = 30  # short\n")
    return home


def setup(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), "setup", "memory", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
        timeout=30,
        check=False,
    )


def written(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "config.toml").read_text()).get("memory", {})


def test_options_set_providers_and_their_settings(home: Path) -> None:
    told = ("--set", "attic.url=http://127.0.0.1:9", "--set", "attic.boxes=5")
    done = setup(home, "builtin", "attic", *told, "--json", ATTIC_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"memory": ["builtin", "attic"], "tried": True, "health": {"attic": "ok"}}
    assert written(home) == {"providers": ["builtin", "attic"], "attic": {"url": "http://127.0.0.1:9", "boxes": 5}}
    assert "turn_s = 30  # short" in (home / "config.toml").read_text()
    assert json.loads(setup(home, "builtin", "--json").stdout)["memory"] == ["builtin"]
    assert written(home)["attic"]["boxes"] == 5, "the settings of a removed provider must be kept"


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "words"),
    [
        (["attic", "--set", "attic.url=http://h"], {"ATTIC_KEY": "wrong"}, 75, "it does not know the key"),
        (["attic", "--set", "attic.url=http://h/fire"], {}, 75, "attic: its health check failed: 'ladder'"),
        (["attic"], {"ATTIC_KEY": KEY}, 78, "memory.attic: 'url' is missing"),
        (["attik"], {}, 2, "Unknown memory provider 'attik'. Did you mean attic?"),
        (["attic", "--set", "attic.urk=x"], {}, 2, "Unknown setting 'attic.urk'. Did you mean attic.url?"),
        (["attic", "--set", "attic.boxes=99"], {}, 2, "enter a number from 1 to 9"),
        (["attic", "--set", "attic.url=nowhere"], {}, 2, "not an http URL"),
        (["attic", "--set", f"attic.api_key_env={KEY}"], {}, 2, "put the key itself into .env"),
        (["attic", "--set", f"attic.api_key={KEY}"], {}, 2, "do not give a key on the command line"),
        ([], {}, 2, "No terminal to ask questions"),
    ],
)
def test_a_failing_choice_is_reported_and_nothing_is_written(
    home: Path, arguments: list[str], variables: dict[str, str], code: int, words: str
) -> None:
    before = (home / "config.toml").read_text()
    done = setup(home, *arguments, **variables)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert KEY not in done.stderr
    assert (home / "config.toml").read_text() == before


def test_declared_settings_are_asked_for_and_the_key_is_never_shown(home: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup", "memory"])
    try:
        for question, answer in (
            ("(?s)1  builtin.*attic.*Memory providers .numbers", "1 attic"),
            ("attic: Its address", "nowhere"),
            ("(?s)not an http URL.*attic: Its address", "http://127.0.0.1:9"),
            (r"attic: How many boxes \[3\]", ""),
            ("attic: Its key", KEY),
        ):
            terminal.expect(question)
            terminal.type(f"{answer}\n")
        terminal.expect("Memory providers in use: builtin, attic.")
        assert terminal.ended() == 0
        assert "everthread memory copy --to attic" in terminal.seen
        assert KEY not in terminal.seen
    finally:
        terminal.close()
    assert written(home) == {"providers": ["builtin", "attic"], "attic": {"url": "http://127.0.0.1:9"}}
    assert (home / ".env").read_text() == f"ATTIC_KEY={KEY}\n"
    assert (home / ".env").stat().st_mode & 0o777 == 0o600


def test_an_answer_replaces_a_setting_even_with_the_default(home: Path) -> None:
    told = ("--set", "attic.url=http://127.0.0.1:9", "--set", "attic.boxes=5")
    assert setup(home, "attic", *told, ATTIC_KEY=KEY).returncode == 0
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup", "memory", "--offline"])
    try:
        for question, answer in (
            ("Memory providers .numbers", ""),
            ("attic: Its address", "http://127.0.0.1:8"),
            (r"attic: How many boxes \[5\]", "3"),
            ("attic: Its key", ""),
        ):
            terminal.expect(question)
            terminal.type(f"{answer}\n")
        terminal.expect("Memory providers in use: attic.")
        assert terminal.ended() == 0
    finally:
        terminal.close()
    assert written(home)["attic"] == {"url": "http://127.0.0.1:8", "boxes": 3}


def test_the_examples_of_the_help_work(home: Path) -> None:
    help_text = setup(home, "--help").stdout
    [example] = [line for line in help_text.splitlines() if "everthread setup memory" in line and "--set" in line]
    done = setup(home, *example.split()[3:], "--offline")
    assert done.returncode == 0, done.stderr
