"""Unusable homes, full disks and interruptions: one line on stderr and an exit code."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.used_home import UsedHome, assert_one_line, everthread, titles_in

from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.schema import Settings

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_a_closed_pipe_prints_no_error(lived: UsedHome) -> None:
    command = f"{sys.executable} -m everthread --home {lived.home} sessions list | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=18, check=False)
    assert done.stderr == ""


EVERY_COMMAND = ["sessions list", "journal retry picky", "forget 01ABCD --yes"]
"""One of each sort: it looks, it acts, it looks and then acts."""


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_damaged_database_is_refused_and_unchanged(command: str, tmp_path: Path) -> None:
    path = tmp_path / "everthread.db"
    path.write_bytes(b"this was a database once " * 1000)
    before = path.read_bytes()
    assert_one_line(everthread(*command.split(), home=tmp_path), 78, str(path), "backup")
    assert path.read_bytes() == before


def test_damage_within_the_file_is_refused(lived: UsedHome) -> None:
    path = lived.home / "everthread.db"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    assert_one_line(everthread("sessions", "list", home=lived.home), 78, str(path))


def test_a_database_of_a_newer_version_is_refused_and_unchanged(lived: UsedHome) -> None:
    path = lived.home / "everthread.db"
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, 'from_the_future', 'x')")
    connection.close()
    before = path.read_bytes()
    for command in EVERY_COMMAND:
        assert_one_line(everthread(*command.split(), home=lived.home), 78, "9999", "Upgrade")
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_database_of_another_program_is_refused_and_unchanged(command: str, tmp_path: Path) -> None:
    path = tmp_path / "everthread.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    assert_one_line(everthread(*command.split(), home=tmp_path), 78, "other program")
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["everthread.db"]


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_home_that_is_no_folder_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for home in (tmp_path / "file", tmp_path / "file" / "below", Path("/dev/null/home")):
        assert_one_line(everthread(*command.split(), home=home), 78, str(home))
    (tmp_path / "odd" / "everthread.db").mkdir(parents=True)
    assert_one_line(everthread(*command.split(), home=tmp_path / "odd"), 78, "everthread.db")


@pytest.mark.parametrize("command", ["sessions list", "boundaries", "forget x --yes", "logs"])
def test_a_home_that_cannot_be_read_is_refused(command: str, tmp_path: Path) -> None:
    home = tmp_path / ("x" * 300)
    assert_one_line(everthread(*command.split(), home=home), 78, str(home), "File name too long", "choose another home")


def test_a_bug_is_one_line_unless_debugging(
    lived: UsedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Settings) -> Runtime:
        raise ZeroDivisionError("some\nbug")

    monkeypatch.delenv("EVERTHREAD_DEBUG", raising=False)
    assert cli.run(broken, ["--home", str(lived.home), "sessions", "list"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("everthread: unexpected ZeroDivisionError: some bug; run with EVERTHREAD_DEBUG=1")
    assert told.count("\n") == 1

    monkeypatch.setenv("EVERTHREAD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.run(broken, ["--home", str(lived.home), "sessions", "list"])


SMALL_DISK = """
mount -t tmpfs -o size=1m none "$2" || exit 9
cp -r "$1" "$2/home"
dd if=/dev/zero of="$2/filler" bs=4k 2>/dev/null
# First there is no room for any file, then for those beside the database, but for little more.
{command} forget --owner local --yes; echo "full: $?"
truncate --size=-80k "$2/filler"
{command} forget --owner local --yes; echo "nearly full: $?"
rm "$2/filler"
{command} sessions list --json; echo "freed: $?"
{command} forget --owner local --yes; echo "again: $?"
"""


def test_a_full_disk_loses_nothing(lived: UsedHome, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = SMALL_DISK.format(command=f'{sys.executable} -m everthread --home "$2/home"')
    # The mount is visible to this script only and ends with it.
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which(alone[0]) is None or subprocess.run([*alone, "mount", "-t", "tmpfs", "x", disk]).returncode:
        pytest.skip("small disks can't be mounted here")
    done = subprocess.run(
        [*alone, "bash", "-c", script, "-", lived.home, disk], capture_output=True, text=True, timeout=18, check=False
    )
    codes = re.findall(r"^(\w[\w ]+): (\d+)$", done.stdout, re.MULTILINE)
    assert codes == [("full", "75"), ("nearly full", "75"), ("freed", "0"), ("again", "0")], done.stderr
    first, second = done.stderr.splitlines()
    assert "no room left" in first
    assert "no room left" in second
    listing = done.stdout[done.stdout.index("[") : done.stdout.index("freed")]
    assert {session["title"] for session in json.loads(listing)} == {"Trip to Lisbon", "Trip to Lisbon #2", "日本旅行"}
    assert done.stdout.count("Forgotten.") == 1


def test_an_interrupted_command_prints_nothing_and_changes_nothing(lived: UsedHome) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "everthread", "--home", str(lived.home), "forget", lived.chat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    said = b""
    while b"permanently?" not in said:
        said += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=18)
    assert (process.returncode, told.strip()) == (130, b"")
    assert "日本旅行" in titles_in(lived.home)
