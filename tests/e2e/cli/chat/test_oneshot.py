"""`everthread -p`: one prompt, one answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Home, Run
from tests.e2e.commands import printed
from tests.e2e.model_endpoint import model_endpoint

from everthread.agent.titles import INSTRUCTION
from everthread.testing.model_server.replies import Reply, Say
from everthread.testing.model_server.validation import Chat, Messages


def test_recalled_items_are_shown_with_verbose_only(home: Home, run: Run) -> None:
    home.set_script(remembers=True)
    told = r"recalled (shoebox 01OLD): likes green tea"
    assert told in run("-v", "-p", "hello").stderr
    assert told not in run("-p", "hello").stderr


def test_only_the_answer_goes_to_stdout(home: Home, run: Run) -> None:
    done = run("-p", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "echo hello (0 before, 5 characters)\n", "")


def test_piped_input_follows_the_prompt(home: Home) -> None:
    assert home.run("-p", "sum up", stdin="a file\n").stdout == "echo sum up\n\na file (0 before, 14 characters)\n"
    assert home.run("-p", "-", stdin="only this\n").stdout == "echo only this (0 before, 9 characters)\n"


@pytest.mark.parametrize("prompt", ["-", "", "  "])
def test_an_empty_prompt_is_a_usage_error(home: Home, run: Run, prompt: str) -> None:
    done = run("-p", prompt)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("everthread: there is no prompt")


def test_json_output_has_the_answer_its_session_and_usage(home: Home, run: Run) -> None:
    home.set_script(lines=[{"tool": "look"}, "sunny"])
    found = json.loads(run("-p", "the weather?", "-m", "fake/two", "--json").stdout)
    assert re.fullmatch(r"\w{26}", found.pop("session"))
    assert found == {
        "turn": 1,
        "text": "sunny",
        "status": "done",
        "problem": None,
        "model": "fake/two",
        "usage": {"input_tokens": 200, "output_tokens": 20, "cached_tokens": 0, "cost": None},
    }


def test_a_prompt_can_continue_the_latest_session(home: Home, run: Run) -> None:
    done = run("-c", "-p", "hello")
    assert done.returncode == 1
    assert "no conversation to continue yet" in done.stderr
    first = json.loads(run("-p", "one", "--json").stdout)
    second = json.loads(run("-c", "-p", "two", "--json").stdout)
    assert (second["session"], second["turn"]) == (first["session"], 2)


def test_a_prompt_can_resume_a_session_by_title_or_id(home: Home, run: Run) -> None:
    home.run(stdin="/new Lisbon\none\n")
    other = json.loads(run("-p", "two", "--json").stdout)
    assert run("-r", "lisbon", "-p", "three").stdout.startswith("echo three (2 before")
    assert json.loads(run("-r", other["session"], "-p", "four", "--json").stdout)["turn"] == 2
    done = run("-r", "Nowhere", "-p", "five")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no session 'Nowhere'" in done.stderr


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([{"error": "ModelUnavailable", "text": "the endpoint is down; try later"}], 75),
        ([{"error": "ModelUnauthorized", "text": "the key was refused; check it"}], 78),
        ([{"error": "ModelUnknown", "text": "no such model; choose another"}], 78),
        ([{"error": "ModelRefused", "text": "will not do; ask otherwise"}], 1),
        ([""], 1),
    ],
)
def test_a_problem_sets_the_exit_code(home: Home, run: Run, lines: list[Any], code: int) -> None:
    home.set_script(lines=lines)
    done = run("-p", "hello")
    assert (done.returncode, done.stdout) == (code, "")
    problem = [line for line in done.stderr.splitlines() if line.startswith("everthread: ")]
    assert len(problem) == 1
    found = json.loads(run("-p", "hello", "--json").stdout)
    assert problem == [f"everthread: {found['problem']}"]


def test_an_unknown_provider_is_a_configuration_error(home: Home, run: Run) -> None:
    done = run("-m", "nowhere/x", "-p", "hello")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == "everthread: there is no provider 'nowhere'; nowhere/x can't be asked\n"


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        # These providers need a key, so no request is sent (and retried without a network).
        ("openai/x", 78, "api.openai.com needs a key: set OPENAI_API_KEY"),
        ("anthropic/x", 78, "api.anthropic.com needs a key: set ANTHROPIC_API_KEY"),
        ("mine/x", 75, "127.0.0.1:9 can't be reached (Connection refused)"),
    ],
)
def test_a_missing_key_and_an_unreachable_endpoint_are_one_line(
    tmp_path: Path, model: str, code: int, words: str
) -> None:
    (tmp_path / "config.toml").write_text(
        "[providers.mine]\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_env = 'MINE_API_KEY'\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(tmp_path), "-m", model, "-p", "hello"],
        capture_output=True,
        text=True,
        env=env,
        stdin=subprocess.DEVNULL,
        timeout=19,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (code, "", f"everthread: {words}")
    assert len(done.stderr.splitlines()) == (1 if code == 78 else 4)


def test_on_a_terminal_the_answer_is_streamed(home: Home) -> None:
    home.set_script(lines=["first second third"], pause_s=0.4)
    with home.terminal("-p", "hello") as terminal:
        terminal.expect("first")
        assert "third" not in terminal.seen
        terminal.expect("second third\n")
        assert terminal.ended() == 0


CONFIG = 'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n'


def _title_after_prompt(home: Path, *, title_s: float) -> str | None:
    """Return the session title after one prompt; the model waits `title_s` before each chunk of the title."""

    def script(request: Chat | Messages) -> Reply:
        assert isinstance(request, Chat)
        if any(INSTRUCTION in (message.content or "") for message in request.messages):
            return Say("A walk", delay_s=title_s)
        return Say("Into the woods.")

    home.mkdir()
    with model_endpoint(script=script) as server:
        (home / "config.toml").write_text(CONFIG.format(url=server.base_url))
        printed(home, "-p", "Where do we go?")
    [session] = printed(home, "sessions", "list")
    return session["title"]


def test_a_prompt_gives_its_session_a_title(tmp_path: Path) -> None:
    assert _title_after_prompt(tmp_path / "home", title_s=0.1) == "A walk"


def test_a_slow_title_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    assert _title_after_prompt(tmp_path / "home", title_s=25.0) is None
    assert time.monotonic() - began < 15
