"""`everthread setup`."""

from __future__ import annotations

import signal
import sys
import tomllib
from pathlib import Path

from tests.e2e.chat_home import Terminal
from tests.e2e.cli.commands.setup.setup_home import KEY, setup, typed, unchanged

from everthread.testing.model_server.server import ModelServer


def test_offline_writes_untested_and_non_interactive_uses_the_settings(home: Path) -> None:
    assert setup(home, "--model", "mine/bad", "--offline", MINE_KEY=KEY).returncode == 0
    assert 'model = "mine/bad"' in (home / "config.toml").read_text()
    assert setup(home, "--non-interactive", MINE_KEY=KEY).returncode == 78, "the configured model must be tested"
    assert setup(home, "--non-interactive", EVERTHREAD_MODEL="mine/good", MINE_KEY=KEY).returncode == 0


def test_memory_providers_can_be_chosen_in_the_same_run(home: Path) -> None:
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


def test_a_failing_memory_provider_keeps_the_chosen_model(home: Path) -> None:
    code, seen = typed(
        home,
        ("Provider", "mine"),
        ("Model", "good"),
        ("Key", KEY),
        ("the memory providers", "y"),
        ("Memory providers .numbers or names", "builtin honcho"),
        ("Address of the server", "http://127.0.0.1:9"),
        ("Name of the workspace", ""),
        ("(?i)api key", ""),
    )
    assert (code, "can't be reached" in seen) == (75, True), seen
    kept = tomllib.loads((home / "config.toml").read_text())
    assert (kept["model"], "memory" in kept) == ("mine/good", False)


def test_an_aborted_setup_changes_nothing(home: Path, server: ModelServer) -> None:
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
