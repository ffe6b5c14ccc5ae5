"""`everthread completion`, and the completions themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.cli.commands.logs_home import ask, environment, everthread

# --- Completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_has_valid_syntax(shell: str, tmp_path: Path) -> None:
    done = everthread(tmp_path, "completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_EVERTHREAD_COMPLETE" in done.stdout
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert json.loads(everthread(tmp_path, "completion", shell, "--json").stdout)["script"] in done.stdout
    assert everthread(tmp_path, "completion", "csh").returncode == 2


def completed(home: Path, words: str) -> list[str]:
    """Return the bash completions of the last word."""
    given = ["everthread", "--home", str(home), *words.split(" ")]
    done = subprocess.run(
        [sys.executable, "-m", "everthread"],
        capture_output=True,
        text=True,
        env=environment(
            _EVERTHREAD_COMPLETE="bash_complete", COMP_WORDS=" ".join(given), COMP_CWORD=str(len(given) - 1)
        ),
        timeout=18,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_sessions_and_settings_are_completed(home: Path) -> None:
    session = ask(home, "hello")["session"]
    assert completed(home, "mem") == ["memory"]
    assert completed(home, "memory un") == ["undo"]
    assert completed(home, f"forget {session[:6]}") == [session]
    assert completed(home, f"-r {session[:6].lower()}") == [session]
    assert completed(home, "config get limits.t") == ["limits.turn_s"]
    assert completed(home, "journal retry builtin ZZ") == []
    (home / "config.toml").write_text("[broken")
    assert completed(home, "forget 0") == [], "completion must not report configuration errors"
