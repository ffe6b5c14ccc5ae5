"""The `everthread` command line: options, help and usage errors."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.chat_home import Home, Run
from tests.e2e.used_home import assert_one_line, everthread

pytestmark = pytest.mark.usefixtures("compiled_once")


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


def test_the_version_is_printed() -> None:
    done = everthread("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"everthread \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "sessions",
        "sessions list",
        "boundaries",
        "journal",
        "journal status",
        "journal retry",
        "journal replay",
        "forget",
        "config",
        "config path",
        "config show",
        "config validate",
        *(f"config {verb}" for verb in ("get", "set", "edit")),
        "memory",
        *(f"memory {verb}" for verb in ("list", "show", "edit", "log", "undo", "forget", "status")),
        *("recall", "setup", "setup local", "doctor", "logs", "completion"),
        *("pairing", "pairing list", "pairing approve", "pairing revoke"),
    ],
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = everthread(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"Examples?:\n +everthread ", done.stdout)


def test_help_is_quick() -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert everthread("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_s() for _ in range(5)) < 0.2


def test_help_imports_nothing_of_the_core() -> None:
    # CPU time depends on the machine; the imported modules do not.
    script = (
        "import sys; from everthread.__main__ import main; sys.argv[1:] = ['--help']\n"
        "try: main()\nexcept SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "click" in modules
    assert not modules & {"apsw", "msgspec", "asyncio", "pluggy", "importlib.metadata", "json", "everthread.domain"}
    assert not modules & {"dataclasses", "tomllib", "everthread.config.settings"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "lst"],
        ["sessions", "list", "--limit", "0"],
        ["--colour"],
        ["forget"],
        ["forget", "x", "--owner", "y"],
    ],
)
def test_a_usage_error_of_a_command_refers_to_its_help(arguments: list[str], tmp_path: Path) -> None:
    assert_one_line(everthread(*arguments, home=tmp_path), 2, "--help")
