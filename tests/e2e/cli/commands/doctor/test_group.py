"""`everthread doctor` as a whole: healthy, new and broken homes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cli.commands.doctor.doctor_home import doctor, failed


def test_a_healthy_home_passes_every_check(home: Path) -> None:
    done = doctor(home)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "All checks passed."
    marks = {line.split()[1]: line.split()[0] for line in lines[:-1]}
    assert [name for name, mark in marks.items() if mark != "ok"] == ["platforms", "mcp"], (
        "only checks of unconfigured parts are skipped"
    )
    assert "mine/good answered" in done.stdout


def test_a_new_home_passes_and_is_not_created(tmp_path: Path) -> None:
    assert failed(tmp_path / "none", "--offline") == {}
    assert not (tmp_path / "none").exists()


def test_an_unreadable_home_is_reported_by_every_check_that_reads_it(tmp_path: Path) -> None:
    found = failed(tmp_path / ("x" * 300), "--offline")
    assert {"configuration", "sqlite", "store"} <= set(found)
    says, fix = found["sqlite"]
    assert says.endswith("everthread.db: File name too long")
    assert "--home" in fix


def test_the_store_is_checked_even_if_the_configuration_is_invalid(home: Path) -> None:
    (home / "config.toml").write_text("model =")
    told = json.loads(doctor(home, "--json").stdout)
    states = {check["check"]: check["well"] for check in told["checks"]}
    assert [states[name] for name in ("sqlite", "store", "clock", "incidents", "hooks", "turns")] == [True] * 6
    assert [states[name] for name in ("notes", "mcp", "model")] == [None] * 3
    for file in home.glob("everthread.db-*"):
        file.unlink()
    (home / "everthread.db").write_bytes(b"\xaa" * 20_000)
    assert list(failed(home)) == ["configuration", "store"]
