"""`everthread logs` and `everthread completion`, after real questions to a server of models."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.model_endpoint import model_endpoint

from everthread.testing.model_server.server import ModelServer

KEY = "hunter2-hunter2"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_endpoint(key=KEY, models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    text = f'model = "mine/good"\n[providers.mine]\nbase_url = "{server.base_url}"\napi_key_env = "MINE_KEY"\n'
    (home / "config.toml").write_text(text)
    (home / ".env").write_text(f"MINE_KEY={KEY}\n")
    (home / ".env").chmod(0o600)
    return home


def command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "everthread", "--home", str(home), *arguments]


def environment(**more: str) -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | more


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(home, *arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(**variables),
        timeout=18,
        check=False,
    )


def ask(home: Path, text: str) -> dict[str, Any]:
    done = everthread(home, "-p", text, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_happens_in_a_conversation_is_logged_with_its_ids_and_no_secret(home: Path) -> None:
    assert "No log yet" in everthread(home, "logs").stderr
    told = ask(home, "hello, my number is 4711")
    done = everthread(home, "logs", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    [turn] = [entry for entry in entries if entry["text"] == "turn committed"]
    assert (turn["session"], turn["turn"], turn["status"]) == (told["session"], 1, "done")
    assert {"suspend"} <= {entry.get("boundary") for entry in entries}
    text = (home / "logs" / "everthread.log").read_text()
    assert KEY not in text
    assert "4711" not in text, "what is said stays in the store"
    assert (home / "logs" / "everthread.log").stat().st_mode & 0o777 == 0o600
    shown = everthread(home, "logs", "-n", "50").stdout
    assert f"INFO lifecycle: turn committed (session {told['session']}, turn 1)" in shown
    assert everthread(home, "logs", "-n", "1").stdout.count("\n") == 1


def test_forgetting_empties_the_log(home: Path) -> None:
    session = ask(home, "hello")["session"]
    assert session in (home / "logs" / "everthread.log").read_text()
    assert everthread(home, "forget", session, "--yes").returncode == 0
    assert (home / "logs" / "everthread.log").read_text() == ""


def test_commands_that_only_look_log_nothing(home: Path) -> None:
    everthread(home, "sessions", "list")
    everthread(home, "doctor", "--offline")
    assert not (home / "logs").exists()


def test_following_shows_what_comes_also_in_a_new_file(home: Path) -> None:
    ask(home, "first")
    following = subprocess.Popen(
        command(home, "logs", "-f", "-n", "0", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environment(),
    )
    try:
        assert following.stdout is not None
        time.sleep(1.5)
        second = ask(home, "second")
        assert _comes(following.stdout, second["session"])
        file = home / "logs" / "everthread.log"
        file.rename(file.with_name("everthread.log.1"))
        third = ask(home, "third")
        assert _comes(following.stdout, third["session"])
        following.send_signal(signal.SIGINT)
        assert following.wait(5) == 130
        assert following.stderr is not None
        assert following.stderr.read().strip() == b""
    finally:
        following.kill()
        following.communicate()
    assert len(everthread(home, "logs", "-n", "1000", "--json").stdout.splitlines()) > 4, "older files are read too"


def _comes(stream: Any, session: str) -> bool:
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        if select.select([stream], [], [], 0.2)[0]:
            entry = json.loads(stream.readline())
            if entry.get("session") == session and entry["text"] == "turn committed":
                return True
    return False


# --- Completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_one_that_the_shell_can_read(shell: str, tmp_path: Path) -> None:
    done = everthread(tmp_path, "completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_EVERTHREAD_COMPLETE" in done.stdout
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert json.loads(everthread(tmp_path, "completion", shell, "--json").stdout)["script"] in done.stdout
    assert everthread(tmp_path, "completion", "csh").returncode == 2


def completed(home: Path, words: str) -> list[str]:
    """What bash would be offered for the last of these words."""
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
    assert completed(home, "forget 0") == [], "no place to tell of a mistake"
