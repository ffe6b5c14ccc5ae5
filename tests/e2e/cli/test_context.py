"""The home of a command: selection, creation, and concurrent use."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.used_home import UsedHome, assert_one_line, everthread, printed, titles_in, write_lock

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_an_empty_home_option_is_a_usage_error() -> None:
    assert_one_line(everthread("sessions", "list", home=""), 2, "--home")


def test_the_home_is_the_flag_then_the_variable_then_xdg_then_the_users(tmp_path: Path) -> None:
    variables = {
        "HOME": str(tmp_path / "user"),
        "XDG_DATA_HOME": str(tmp_path / "xdg"),
        "EVERTHREAD_HOME": str(tmp_path / "variable"),
    }

    def used(*arguments: str, **env: str) -> str:
        done = everthread(*arguments, "sessions", "list", env=env)
        assert done.returncode == 0
        return done.stdout

    assert str(tmp_path / "flag") in used("--home", str(tmp_path / "flag"), **variables)
    assert str(tmp_path / "variable") in used(**variables)
    assert str(tmp_path / "xdg" / "everthread") in used(**variables | {"EVERTHREAD_HOME": ""})
    assert str(tmp_path / "user" / ".everthread") in used(**variables | {"EVERTHREAD_HOME": "", "XDG_DATA_HOME": ""})
    assert str(tmp_path / "user" / ".everthread") in used(
        **variables | {"EVERTHREAD_HOME": "", "XDG_DATA_HOME": "relative/is/invalid"}
    )
    assert str(tmp_path / "user" / "mine") in used("--home", "~/mine", **variables)


def test_the_home_may_be_given_after_the_command(lived: UsedHome) -> None:
    done = everthread("sessions", "list", "--home", str(lived.home))
    assert "Trip to Lisbon" in done.stdout


@pytest.mark.parametrize("command", ["sessions list", "boundaries", "journal status"])
def test_reading_a_missing_home_shows_nothing_and_creates_nothing(command: str, tmp_path: Path) -> None:
    home = tmp_path / "not" / "yet"
    assert printed(*command.split(), home=home) == []
    done = everthread(*command.split(), home=home)
    assert done.returncode == 0
    assert str(home) in done.stdout
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("command", ["journal retry picky", "journal replay picky", "forget 01ABCD --yes"])
def test_writing_to_a_missing_home_is_refused_and_creates_nothing(command: str, tmp_path: Path) -> None:
    assert_one_line(everthread(*command.split(), home=tmp_path / "not"), 1, str(tmp_path / "not"))
    assert not (tmp_path / "not").exists()


def test_reading_commands_write_nothing(lived: UsedHome) -> None:
    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() if path.is_file() else b"" for path in lived.home.rglob("*")}

    before = kept()
    for command in ("sessions list", "sessions tree", "boundaries", "journal status"):
        assert everthread(*command.split(), home=lived.home).returncode == 0
    assert kept() == before


BUSY_S_MAX = 5.0


@pytest.mark.parametrize("command", ["journal retry picky", "forget --owner local --yes"])
def test_a_writing_command_fails_while_another_program_writes(command: str, lived: UsedHome) -> None:
    begun = time.monotonic()
    with write_lock(lived.home):
        done = everthread(*command.split(), home=lived.home)
    assert_one_line(done, 75, "Try again")
    assert time.monotonic() - begun < BUSY_S_MAX + 3
    assert len(titles_in(lived.home)) == 3
    assert everthread(*command.split(), home=lived.home).returncode == 0, (
        "the command must succeed once the lock is released"
    )


def test_reading_does_not_wait_for_a_writer(lived: UsedHome) -> None:
    with write_lock(lived.home):
        assert len(titles_in(lived.home)) == 3


def test_many_processes_at_once_all_succeed(lived: UsedHome) -> None:
    commands = [["journal", "replay", "picky"], ["journal", "retry", "picky"], ["sessions", "list"]] * 2
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "everthread", "--home", str(lived.home), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    assert [(process.communicate(timeout=18)[1], process.returncode) for process in running] == [("", 0)] * 6
