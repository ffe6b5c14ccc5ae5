"""Checks run independently: one that raises or hangs fails alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everthread.cli.commands.doctor import group as doctor
from everthread.cli.commands.doctor.check import Case, Check, Finding, well
from everthread.cli.context import CliContext
from everthread.domain.errors import BadConfig


async def fine(case: Case) -> Finding:
    return well("fine")


async def broken(case: Case) -> Finding:
    raise KeyError("a bug")


async def hanging(case: Case) -> Finding:
    await asyncio.sleep(60)
    return well("never")


async def test_a_check_that_raises_or_hangs_fails_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (Check("a", broken), Check("b", hanging, bound_s=0.05), Check("c", fine), Check("d", fine, "runtime"))
    monkeypatch.setattr(doctor, "all_checks", lambda: table)

    def nothing(_: object) -> object:
        raise BadConfig("not readable")

    cli = CliContext(nothing)  # type: ignore[arg-type]
    cli.home = str(tmp_path / "none")
    found = [(name, outcome.well, outcome.says) async for name, outcome in doctor.run_checks(cli, True)]
    assert found == [
        ("a", False, "'a bug'"),
        ("b", False, "no answer within 0.05 s"),
        ("c", True, "fine"),
        ("d", None, "skipped: there is no usable store"),
    ]


def test_every_check_has_a_unique_name_and_a_time_limit() -> None:
    checks = doctor.all_checks()
    assert len({check.name for check in checks}) == len(checks)
    assert sum(check.bound_s for check in checks) <= 300
