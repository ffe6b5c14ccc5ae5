"""The group `everthread sessions`: its help, unknown sessions and missing homes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.cli.commands.sessions.sessions_home import SampleHome
from tests.e2e.commands import everthread, refused
from tests.e2e.used_home import UsedHome, printed
from tests.e2e.used_home import everthread as run_everthread

VERBS = ["list", "browse", "show", "tree", "rename", "export", "import", "prune", "delete", "reindex"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, tmp_path: Path) -> None:
    done = everthread(tmp_path, "sessions", verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"everthread sessions {verb}" in done.stdout
    assert "--json" in done.stdout


@pytest.mark.parametrize("verb", ["show x", "tree x", "rename x y", "delete x --yes", "export x", "export --all"])
def test_a_missing_home_is_reported_and_not_created(verb: str, tmp_path: Path) -> None:
    refused(everthread(tmp_path / "not", "sessions", *verb.split()), 1, str(tmp_path / "not"))
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("verb", ["show", "tree", "rename", "delete", "export"])
def test_an_unknown_session_is_one_line_and_exit_code_1(verb: str, sample: SampleHome) -> None:
    more = {"rename": ["new"], "delete": ["--yes"]}.get(verb, [])
    refused(everthread(sample.home, "sessions", verb, "no such\n\x1b[31m", *more), 1, "no such")


@pytest.mark.parametrize("verb", [("export", "--all"), ("list",)])
def test_output_to_a_full_device_is_one_line(sample: SampleHome, verb: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everthread", "--home", str(sample.home), "sessions", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=18,
            check=False,
        )
    refused(done, 75, "no space left")


def test_sessions_list_shows_every_owners_conversations(lived: UsedHome) -> None:
    found = printed("sessions", "list", home=lived.home)
    assert [session["id"] for session in found] == [lived.chat, lived.branch, lived.lisbon]
    lisbon = found[-1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lisbon.pop("last_active"))
    assert lisbon.pop("opened")
    assert lisbon == {
        "id": lived.lisbon,
        "title": "Trip to Lisbon",
        "state": "open",
        "end_reason": None,
        "turns": 2,
        "key": "agent:main:cli:dm:1",
        "owner": "local",
        "kind": "chat",
        "cause": "new_session",
        "parent": None,
    }


def test_sessions_list_prints_a_table(lived: UsedHome) -> None:
    heading, *lines = run_everthread("sessions", "list", home=lived.home).stdout.splitlines()
    assert heading.split("  ")[0] == "ID"
    assert len(lines) == 3
    assert re.match(
        rf"{lived.lisbon}  Trip to Lisbon +open +2 +\d{{4}}-\d\d-\d\d \d\d:\d\d +agent:main:cli:dm:1$", lines[2]
    )
    # Columns stay aligned with double-width characters.
    assert lines[0].index("open") + len("日本旅行") == lines[2].index("open")


def test_limit_limits_the_list(lived: UsedHome) -> None:
    assert len(printed("sessions", "list", "--limit", "1", home=lived.home)) == 1
    assert len(printed("boundaries", "--limit", "2", home=lived.home)) == 2
