"""Secrets in a setup: prompts, settings for a test, and `.env`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from everthread.cli.commands.setup.secrets import ask_secret, with_secrets, write_settings
from everthread.config.schema import Settings
from everthread.config.settings import home_paths, load


def ask(typed: str, *, exists: bool = False, required: bool = True) -> tuple[str, str]:
    """Return the secret and everything printed."""
    found: list[str] = []

    @click.command()
    def command() -> None:
        found.append(ask_secret("Key", "MY_KEY", exists=exists, required=required))

    done = CliRunner().invoke(command, input=typed)
    assert done.exit_code == 0, done.output
    return found[0], done.output


def test_a_secret_is_stripped_and_not_shown() -> None:
    secret, output = ask("  sk-123 \n")
    assert secret == "sk-123"
    assert output == "Key (MY_KEY; input is hidden): \n"


@pytest.mark.parametrize("invalid", ["two words", "x" * 5000, "\x01"])
def test_an_invalid_secret_is_asked_for_again(invalid: str) -> None:
    secret, output = ask(f"{invalid}\nsk-123\n")
    assert secret == "sk-123"
    assert "not a valid key" in output
    assert invalid not in output


def test_an_empty_secret_needs_a_current_one_or_is_optional() -> None:
    assert ask("\n", exists=True) == ("", "Key (MY_KEY; input is hidden, Enter keeps the current one): \n")
    assert ask("\n", required=False)[0] == ""
    assert ask("\n \nsk-123\n")[0] == "sk-123"


def test_settings_are_tested_with_a_secret_that_is_not_written(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    assert with_secrets(settings, {"MY_KEY": "sk-123"}).secret("MY_KEY") == "sk-123"
    assert settings.secret("MY_KEY") is None
    assert list(tmp_path.iterdir()) == []


def test_values_go_to_the_configuration_and_secrets_to_the_private_file(tmp_path: Path) -> None:
    write_settings(home_paths(str(tmp_path)), {"limits.turn_s": 30}, {"MY_KEY": "sk-123"})
    settings = load(str(tmp_path), {})
    assert (settings.limits.turn_s, settings.secret("MY_KEY")) == (30, "sk-123")
    assert "sk-123" not in (tmp_path / "config.toml").read_text()
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
