"""Checks of the machine, the configuration and the files."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest
from tests.damaged_files import SILENT_DAMAGE, damage_index, lose_index
from tests.e2e.cli.commands.doctor.doctor_home import failed, in_home
from tests.e2e.commands import printed


def test_configuration_problems_are_reported_and_dependent_checks_skipped(home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nturns = 1\niterations = 0\n")
    found = failed(home)
    assert list(found) == ["configuration"]
    says, fix = found["configuration"]
    assert f"{home / 'config.toml'}:2" in says
    assert "1 more" in says
    assert "config validate" in fix


@pytest.mark.parametrize(
    ("name", "mode", "check"),
    [("", 0o755, "home"), ("everthread.db", 0o644, "home"), (".env", 0o640, "env"), ("memory/USER.md", 0o604, "home")],
)
def test_files_readable_by_others_are_reported_with_the_fix(home: Path, name: str, mode: int, check: str) -> None:
    (home / name).chmod(mode)
    found = failed(home, "--offline")
    assert list(found) == [check]
    wanted = "600" if name else "700"
    assert found[check][1] == f"chmod {wanted} {home / name if name else home}"
    subprocess.run(found[check][1].split(), check=True)
    assert failed(home, "--offline") == {}


def test_a_damaged_store_is_reported(home: Path) -> None:
    with (home / "everthread.db").open("r+b") as file:
        for page in range(3, 12):
            file.seek(4096 * page)
            file.write(b"\xaa" * 4096)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    assert "everthread restore FILE" in found["store"][1]


@pytest.mark.parametrize("damage", [None, *SILENT_DAMAGE.values()], ids=["pages", *SILENT_DAMAGE])
def test_a_damaged_search_index_is_reported_and_can_be_rebuilt(home: Path, damage: str | None) -> None:
    in_home(home, lambda runtime: runtime.store.index())
    assert failed(home, "--offline") == {}
    if damage is None:
        damage_index(home / "everthread.db")
    else:
        lose_index(home / "everthread.db", damage)
    found = failed(home, "--offline")
    assert list(found) == ["search"]
    says, fix = found["search"]
    assert says.startswith("damaged: ")
    assert "everthread sessions reindex" in fix
    assert printed(home, "sessions", "reindex") == {"messages": 2}
    assert failed(home, "--offline") == {}


def test_a_file_that_is_not_a_store_is_reported(home: Path) -> None:
    for file in home.glob("everthread.db-*"):
        file.unlink()
    (home / "everthread.db").write_bytes(b"\xaa" * 20_000)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    says, fix = found["store"]
    assert "damaged" in says
    assert "everthread restore FILE" in fix


def test_a_database_cut_to_nothing_is_reported_with_the_backup(home: Path, tmp_path: Path) -> None:
    printed(home, "backup", str(tmp_path / "it.tar.gz"))
    (home / "everthread.db").write_bytes(b"")
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    says, fix = found["store"]
    assert "The database is empty" in says
    assert f"everthread restore {tmp_path / 'it.tar.gz'} --force" in fix


def test_a_home_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("hello")
    [(says, fix)] = failed(tmp_path / "home", "--offline").values()
    assert says.endswith("is not a folder")
    assert "chmod" not in fix
    assert "--home" in fix


def test_a_database_of_another_program_is_reported(home: Path) -> None:
    for file in home.glob("everthread.db*"):
        file.unlink()
    with sqlite3.connect(home / "everthread.db") as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    (home / "everthread.db").chmod(0o600)
    found = failed(home, "--offline")
    assert list(found) == ["store"]
    assert "other program" in found["store"][0]


def test_a_clock_behind_the_stored_times_is_reported(home: Path) -> None:
    with sqlite3.connect(home / "everthread.db") as store:
        store.execute("UPDATE sessions SET active_at = active_at + 90000")
    store.close()
    assert "behind" in failed(home, "--offline")["clock"][0]
