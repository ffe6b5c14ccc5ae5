"""`everthread setup`: choosing a model and a key, with real processes, terminals and a server that checks the key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.chat_home import Terminal
from tests.e2e.model_endpoint import model_endpoint

from everthread.config.schema import built_in_providers
from everthread.testing.model_server.server import ModelServer

KEY = "sk-right-0123456789abcdefghij"
WRONG = "sk-wrong-0123456789abcdefghij"
CONFIG = '# mine\n[limits]\nturn_s = 30  # short\n\n[providers.mine]\nbase_url = "{url}"\napi_key_env = "MINE_KEY"\n'


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_endpoint(key=KEY, models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(CONFIG.format(url=server.base_url))
    (home / ".env").write_text("# others\nOTHER=1\n")
    (home / ".env").chmod(0o600)
    return home


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in built_in_providers().values():
        if provider.api_key_env:
            monkeypatch.delenv(provider.api_key_env, raising=False)


def setup(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), "setup", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
        timeout=18,
        check=False,
    )


def unchanged(home: Path, server: ModelServer) -> bool:
    env = (home / ".env").read_text()
    return (home / "config.toml").read_text() == CONFIG.format(url=server.base_url) and env == "# others\nOTHER=1\n"


def test_a_script_names_a_model_and_the_variable_of_its_key(home: Path, server: ModelServer) -> None:
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
def test_what_does_not_work_is_told_and_nothing_is_written(
    home: Path, server: ModelServer, arguments: list[str], variables: dict[str, str], code: int, words: str
) -> None:
    done = setup(home, *arguments, **variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert WRONG not in done.stderr
    assert "Traceback" not in done.stderr
    assert unchanged(home, server)


def test_offline_writes_without_trying_and_non_interactive_takes_what_is_configured(home: Path) -> None:
    assert setup(home, "--model", "mine/bad", "--offline", MINE_KEY=KEY).returncode == 0
    assert 'model = "mine/bad"' in (home / "config.toml").read_text()
    assert setup(home, "--non-interactive", MINE_KEY=KEY).returncode == 78, "it is tried"
    assert setup(home, "--non-interactive", EVERTHREAD_MODEL="mine/good", MINE_KEY=KEY).returncode == 0


def test_plugins_of_installed_packages_are_named_and_not_loaded(home: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "jars-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: jars\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[everthread.plugins]\njars = no_such_module:plugin\n")
    path = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    done = setup(home, "--model", "mine/good", "--offline", "--json", MINE_KEY=KEY, PYTHONPATH=path)
    assert (done.returncode, json.loads(done.stdout)["plugins"]) == (0, ["jars"])
    assert "no_such_module" not in done.stderr


def typed(home: Path, *answers: tuple[str, str]) -> tuple[int, str]:
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup"])
    try:
        for question, answer in answers:
            terminal.expect(question)
            terminal.type(f"{answer}\n")
        return terminal.ended(), terminal.seen
    finally:
        terminal.close()


def test_a_person_is_asked_and_a_key_is_never_shown(home: Path, server: ModelServer) -> None:
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


def test_an_endpoint_of_ones_own_can_be_set_up(home: Path, server: ModelServer) -> None:
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


def test_memories_are_chosen_in_the_same_go(home: Path) -> None:
    code, seen = typed(
        home,
        ("Provider", "mine"),
        ("Model", "good"),
        ("Key", KEY),
        ("(?s)The model answered.*the memory providers", "y"),
        ("(?s)honcho.*openviking.*Memory providers .numbers or names", "builtin"),
    )
    assert code == 0, seen
    kept = tomllib.loads((home / "config.toml").read_text())
    assert kept["model"] == "mine/good"
    assert kept["memory"]["providers"] == ["builtin"]
    assert "Memory providers in use: builtin." in seen


def test_memories_that_do_not_answer_leave_the_model_as_it_was_chosen(home: Path) -> None:
    code, seen = typed(
        home,
        ("Provider", "mine"),
        ("Model", "good"),
        ("Key", KEY),
        ("the memory providers", "y"),
        ("Memory providers .numbers or names", "builtin honcho"),
        ("Address of the server", "http://127.0.0.1:9"),
        ("Name of the workspace", ""),
        ("(?i)its key", ""),
    )
    assert (code, "can't be reached" in seen) == (75, True), seen
    kept = tomllib.loads((home / "config.toml").read_text())
    assert (kept["model"], "memory" in kept) == ("mine/good", False)


def test_leaving_in_the_middle_changes_nothing(home: Path, server: ModelServer) -> None:
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup"])
    try:
        for question, answer in (("Provider", "mine"), ("Model", "good")):
            terminal.expect(question)
            terminal.type(f"{answer}\n")
        terminal.expect("Key")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130, terminal.seen
    finally:
        terminal.close()
    assert unchanged(home, server)
