"""`everthread setup telegram`."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Terminal
from tests.e2e.commands import everthread, printed, refused
from tests.telegram_gateway import TOKEN, EmulatorProcess

SECRET = TOKEN.partition(":")[2]


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorProcess]:
    emulator = EmulatorProcess()
    yield emulator
    emulator.end()


@pytest.fixture
def home(tmp_path: Path, emulator: EmulatorProcess) -> Path:
    (tmp_path / "config.toml").write_text(f'[platforms.telegram]\nenabled = false\nbase_url = "{emulator.base_url}"\n')
    return tmp_path


def run(home: Path, *arguments: str, **variables: str) -> Any:
    done = everthread(home, *arguments, answer="", env={**os.environ, **variables})
    assert SECRET not in done.stdout + done.stderr
    return done


def test_an_option_names_the_variable_of_the_token(home: Path) -> None:
    done = run(home, "setup", "telegram", "--token-env", "MY_TOKEN", "--allow", "4001", "--json", MY_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert '"bot": "@test_bot"' in done.stdout
    text = (home / "config.toml").read_text()
    assert 'token_env = "MY_TOKEN"' in text
    assert "enabled = true" in text
    assert '"4001"' in text
    assert not (home / ".env").exists()


def test_a_rejected_token_changes_nothing(home: Path) -> None:
    before = (home / "config.toml").read_text()
    done = run(home, "setup", "telegram", "--token-env", "MY_TOKEN", MY_TOKEN="42:wrong")
    assert done.returncode != 0
    assert "its token is not accepted" in done.stderr
    assert (home / "config.toml").read_text() == before
    done = run(home, "setup", "telegram", "--token-env", "NOT_SET")
    refused(done, 2, "NOT_SET is not set")
    done = run(home, "setup", "telegram", "--token-env", "MY_TOKEN", MY_TOKEN="nonsense")
    assert "is not a bot token" in done.stderr


def test_without_a_terminal_no_question_is_asked(home: Path) -> None:
    done = run(home, "setup", "telegram")
    assert done.returncode == 2
    assert "--token-env" in done.stderr


def test_the_doctor_tests_the_token(home: Path) -> None:
    def checked(**variables: str) -> dict[str, Any]:
        os.environ.update(variables)
        try:
            done = everthread(home, "doctor", "--json", answer="")
        finally:
            for name in variables:
                del os.environ[name]
        assert SECRET not in done.stdout
        return next(one for one in json.loads(done.stdout)["checks"] if one["check"] == "platforms")

    assert checked()["says"] == "none configured"
    run(home, "setup", "telegram", "--token-env", "MY_TOKEN", "--offline", MY_TOKEN=TOKEN)
    found = checked(MY_TOKEN=TOKEN)
    assert (found["well"], found["says"]) == (True, "telegram (@test_bot)")
    found = checked(MY_TOKEN="42:wrong")
    assert found["well"] is False
    assert "its token is not accepted" in found["says"]
    assert "MY_TOKEN is not set" in checked()["says"]


def test_a_typed_token_is_written_to_the_private_env_file(home: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup", "telegram"])
    try:
        terminal.expect(r"Token \(TELEGRAM_BOT_TOKEN")
        terminal.type(f"{TOKEN}\n")
        assert terminal.ended() == 0, terminal.seen
        assert SECRET not in terminal.seen
        assert "Start it with everthread gateway run." in terminal.seen
    finally:
        terminal.close()
    assert f"TELEGRAM_BOT_TOKEN={TOKEN}" in (home / ".env").read_text()
    assert stat.S_IMODE((home / ".env").stat().st_mode) == 0o600
    assert SECRET not in (home / "config.toml").read_text()


def test_the_json_output_is_as_documented(home: Path) -> None:
    (home / ".env").write_text(f"TELEGRAM_BOT_TOKEN={TOKEN}\n")
    (home / ".env").chmod(0o600)
    shown = printed(home, "setup", "telegram", "--token-env", "TELEGRAM_BOT_TOKEN")
    assert set(shown) == {"platform", "bot", "config", "token_env", "token_written", "tried"}
