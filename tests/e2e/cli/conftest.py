"""Fixtures for tests of the chat."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Ended, Home, OpenScreen, Run
from tests.e2e.chat_worker import ScriptedRuntime
from tests.terminal_screen import TerminalScreen

from everthread.cli import main as cli


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def run(home: Home, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, without stdin."""

    def run(*arguments: str) -> Ended:
        script = json.loads(home.script.read_text())
        code = cli.run(lambda settings: ScriptedRuntime(settings, script), ["--home", str(home.path), *arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def open_screen(home: Home) -> OpenScreen:
    """Run a command on a full terminal."""

    def open_screen(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> TerminalScreen:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("EVERTHREAD_") and name not in ("NO_COLOR", "COLORFGBG")
        }
        return TerminalScreen(home.command(*arguments), {**inherited, **(env or {})}, **more)

    return open_screen
