"""`everthread config`, and what a mistake in a configuration does to any other command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECRET = "sk-ant-0123456789abcdefghij"
CONFIG = """\
model = "ollama/qwen3"

[limits]
turn_s = 30

[mcpServers.files]
command = "npx"
args = ["hunter2"]
env = { PIN = "hunter2", FILES_TOKEN = "${FILES_TOKEN}" }

[reset.chat_types.group]
mode = "idle"
idle_minutes = 60
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    (tmp_path / ".env").chmod(0o600)
    return tmp_path


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        env=inherited | variables,
        timeout=18,
        check=False,
    )


def printed(home: Path, *arguments: str, **variables: str) -> Any:
    done = everthread(home, *arguments, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_show_has_what_is_in_force_and_no_secret(home: Path) -> None:
    shown = printed(home, "config", "show", EVERTHREAD_MODEL="local/x", ANTHROPIC_API_KEY=SECRET)
    assert shown["model"] == "local/x"
    assert shown["limits"] == {"iterations": 50, "turn_s": 30.0, "output_tokens": 8192, "spend_per_day": None}
    assert shown["reset"]["mode"] == "none"
    assert shown["reset"]["chat_types"] == {
        "group": {"mode": "idle", "idle_minutes": 60.0, "hour": None, "zone": None},
    }
    set_or_not = {name: provider["api_key_set"] for name, provider in shown["providers"].items()}
    assert (set_or_not["anthropic"], set_or_not["openai"], set_or_not["gemini"]) == (True, True, False)
    assert set_or_not["ollama"] is None, "needs none"
    assert shown["mcpServers"]["files"]["env"] == {"PIN": "[hidden]", "FILES_TOKEN": "${FILES_TOKEN}"}
    for text in (json.dumps(shown), everthread(home, "config", "show", FILES_TOKEN=SECRET).stdout):
        assert SECRET not in text
        assert "hunter2" not in text


def test_show_is_a_plain_table_for_people(home: Path) -> None:
    lines = everthread(home, "config", "show").stdout.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["SETTING"] == "VALUE"
    assert rows["model"] == "ollama/qwen3"
    assert rows["limits.turn_s"] == "30"
    assert rows["providers.openai.api_key_set"] == "yes"
    assert rows["reset.chat_types.group.idle_minutes"] == "60"


def test_path_is_said_whatever_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[broken")
    assert everthread(tmp_path, "config", "path").stdout == f"{tmp_path / 'config.toml'}\n"
    assert printed(tmp_path / "not there", "config", "path") == {
        "home": f"{tmp_path}/not there",
        "config": f"{tmp_path}/not there/config.toml",
        "env": f"{tmp_path}/not there/.env",
        "mcp": f"{tmp_path}/not there/mcp.json",
    }
    assert not (tmp_path / "not there").exists()


def test_validate_is_content_with_what_is_right(home: Path, tmp_path: Path) -> None:
    assert everthread(home, "config", "validate").stdout == f"{home / 'config.toml'}: no mistakes.\n"
    assert printed(home, "config", "validate") == {"valid": True, "error": None, "warnings": []}
    assert "not there, and not needed" in everthread(tmp_path / "none", "config", "validate").stdout
    (home / ".env").chmod(0o644)
    [warning] = printed(home, "config", "validate")["warnings"]
    assert f"chmod 600 {home / '.env'}" in warning
    assert warning in everthread(home, "config", "validate").stdout


@pytest.mark.parametrize("command", ["config validate", "config show", "sessions list", "forget 01ABCD --yes"])
def test_a_mistake_is_one_line_and_78_for_every_command(command: str, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nturns = 5\n")
    done = everthread(home, *command.split())
    assert done.returncode == 78
    assert done.stderr == (
        f"everthread: {home / 'config.toml'}:2: unknown key 'turns' in [limits]; did you mean 'turn_s'?\n"
    )
    assert done.stdout == ""


def test_validate_tells_a_program_what_is_wrong(home: Path) -> None:
    (home / "config.toml").write_text("model = 'x'")
    done = everthread(home, "config", "validate", "--json")
    assert done.returncode == 78
    told = json.loads(done.stdout)
    assert told["valid"] is False
    assert told["error"].startswith(f"{home / 'config.toml'}:1: model: not a model")
    assert done.stderr == f"everthread: {told['error']}\n"


def test_a_key_without_a_model_is_told_by_validate_and_stops_nothing_else(home: Path) -> None:
    (home / "config.toml").unlink()
    done = everthread(home, "config", "validate")
    assert (done.returncode, done.stdout) == (78, "")
    assert f'at the top of {home / "config.toml"}: model = "openai/MODEL"\n' in done.stderr
    assert everthread(home, "sessions", "list").returncode == 0
