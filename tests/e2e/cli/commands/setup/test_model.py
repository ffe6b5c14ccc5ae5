"""Choosing a model and its key."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from tests.e2e.cli.commands.setup.setup_home import KEY, setup, typed, unchanged

from everthread.testing.model_server.server import ModelServer

WRONG = "sk-wrong-0123456789abcdefghij"


def test_options_set_a_model_and_the_variable_of_its_key(home: Path, server: ModelServer) -> None:
    done = setup(home, "--model", "mine/good", "--key-env", "CI_KEY", "--json", CI_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "model": "mine/good",
        "config": str(home / "config.toml"),
        "key_env": "CI_KEY",
        "key_written": False,
        "tried": True,
        "memory": ["builtin"],
        "plugins": [],
    }
    text = (home / "config.toml").read_text()
    assert text.startswith('model = "mine/good"\n\n# mine\n[limits]\nturn_s = 30  # short\n')
    assert text.endswith(f'base_url = "{server.base_url}"\napi_key_env = "CI_KEY"\n')
    assert KEY not in text + done.stdout + done.stderr
    assert (home / ".env").read_text() == "# others\nOTHER=1\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "words"),
    [
        (["--model", "mine/good"], {"MINE_KEY": WRONG}, 78, "does not accept the key"),
        (["--model", "mine/bad"], {"MINE_KEY": KEY}, 78, "check the model's name"),
        (["--model", "mine/good"], {}, 2, "MINE_KEY is not set"),
        (["--model", "mine/good", "--key-env", "NOWHERE"], {"MINE_KEY": KEY}, 2, "NOWHERE is not set"),
        (["--model", "nowhere/x"], {}, 2, "unknown provider 'nowhere'"),
        (["--model", "good"], {}, 2, "PROVIDER/MODEL"),
        (["--model", "openai/x"], {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, 75, "reached"),
        ([], {}, 2, "No terminal to ask questions"),
    ],
)
def test_a_failing_choice_is_reported_and_nothing_is_written(
    home: Path, server: ModelServer, arguments: list[str], variables: dict[str, str], code: int, words: str
) -> None:
    done = setup(home, *arguments, **variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert WRONG not in done.stderr
    assert "Traceback" not in done.stderr
    assert unchanged(home, server)


def test_plugins_of_installed_packages_are_listed_and_not_loaded(home: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "jars-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: jars\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[everthread.plugins]\njars = no_such_module:plugin\n")
    path = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    done = setup(home, "--model", "mine/good", "--offline", "--json", MINE_KEY=KEY, PYTHONPATH=path)
    assert (done.returncode, json.loads(done.stdout)["plugins"]) == (0, ["jars"])
    assert "no_such_module" not in done.stderr


def test_questions_are_asked_and_the_key_is_never_shown(home: Path, server: ModelServer) -> None:
    code, seen = typed(
        home,
        ("Provider", "mine"),
        ("Model", "good"),
        ("Key", WRONG),
        ("(?s)does not accept the key.*Change your answers", ""),
        ("Provider", "9"),
        ("Model", "good"),
        ("Key", KEY),
        ("the memory providers", ""),
    )
    assert code == 0, seen
    assert "The model answered." in seen
    assert "Memory: builtin" in seen
    assert "Write a memory provider" in seen
    assert WRONG not in seen
    assert KEY not in seen
    assert (home / ".env").read_text() == f"# others\nOTHER=1\nMINE_KEY={KEY}\n"
    assert (home / ".env").stat().st_mode & 0o777 == 0o600
    assert "turn_s = 30  # short" in (home / "config.toml").read_text()

    before = ((home / ".env").read_text(), (home / "config.toml").read_text())
    code, seen = typed(
        home,
        (r"Provider.*\[mine\]", ""),
        (r"Model.*\[good\]", ""),
        ("Enter keeps the current", ""),
        ("the memory providers", "n"),
    )
    assert code == 0, seen
    assert ((home / ".env").read_text(), (home / "config.toml").read_text()) == before


def test_a_custom_endpoint_can_be_set_up(home: Path, server: ModelServer) -> None:
    code, seen = typed(
        home,
        ("(?s)another OpenAI-compatible endpoint.*Provider", "+"),
        ("Name", "mine"),
        ("(?s)is taken.*Name", "house.1"),
        ("Address, such as", "nowhere"),
        ("(?s)Error.*Address, such as", f"{server.base_url}/"),
        ("Environment variable for its key", "HOUSE_KEY"),
        ("Model", "good"),
        ("Key", KEY),
        ("the memory providers", ""),
    )
    assert code == 0, seen
    assert "The model answered." in seen
    assert KEY not in seen
    assert f"HOUSE_KEY={KEY}\n" in (home / ".env").read_text()
    kept = tomllib.loads((home / "config.toml").read_text())
    assert kept["model"] == "house.1/good"
    assert kept["providers"]["house.1"] == {"base_url": server.base_url, "api_key_env": "HOUSE_KEY"}
    assert setup(home, "--non-interactive").returncode == 0
