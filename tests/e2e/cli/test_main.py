"""The `everthread` command line: options, help and usage errors."""

from __future__ import annotations

import json

import pytest
from tests.e2e.chat_home import Home, Run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["what is this"], 'everthread -p "..."'),
        (["sesions"], "Did you mean sessions?"),
        (["-c", "-r", "x"], "-c and -r"),
        (["--json"], "-p PROMPT"),
        (["-r", ""], "-r is empty"),
        (["-p", "x", "sessions", "list"], "apply to conversations only"),
        (["-p"], "requires an argument"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint(home: Home, run: Run, arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("everthread: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_commands_run_beside_the_chat(home: Home, run: Run) -> None:
    run("-p", "hello")
    assert len(json.loads(run("sessions", "list", "--json").stdout)) == 1
    assert "Commands:" in run("--help").stdout
