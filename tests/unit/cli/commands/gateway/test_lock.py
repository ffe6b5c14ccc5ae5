"""The lock of a gateway, in one process: what it says, and what is made of what others have left in its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread.cli.commands.gateway import report as reporting
from everthread.cli.commands.gateway.lock import FILE, Held, Holding, Seen, look
from everthread.cli.commands.gateway.systemd_notify import notify
from everthread.domain.errors import Busy, StoreUnwritable

ME = Held(1, "1-A", 1_790_000_000.0)


def test_whoever_holds_the_lock_is_seen_and_nobody_else(tmp_path: Path) -> None:
    assert look(tmp_path) == Seen(False)
    holding = Holding(tmp_path)
    holding.take(ME)
    assert look(tmp_path) == Seen(True, ME)
    told = Held(1, "1-A", 1_790_000_000.0, port=8642)
    holding.tell(told)
    assert look(tmp_path) == Seen(True, told)
    with pytest.raises(Busy, match="process 1, since"):
        Holding(tmp_path).take(ME)
    holding.leave()
    holding.leave()
    assert look(tmp_path) == Seen(False)
    Holding(tmp_path).take(ME)


def test_a_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    first, second = Holding(tmp_path), Holding(tmp_path)
    first.take(ME)
    first.leave()
    (tmp_path / FILE).unlink()
    second.take(ME)
    assert look(tmp_path).running


@pytest.mark.parametrize("left", [b"", b"{", b"\xff" * 5000, b'{"pid": "x"}', b"null", b"[" * 500])
def test_whatever_is_left_in_the_file_blocks_nobody(tmp_path: Path, left: bytes) -> None:
    (tmp_path / FILE).write_bytes(left)
    assert look(tmp_path) == Seen(False)
    holding = Holding(tmp_path)
    holding.take(ME)
    assert look(tmp_path) == Seen(True, ME)
    holding.leave()


def test_a_home_that_can_not_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(StoreUnwritable, match="home"):
        Holding(tmp_path / "home").take(ME)


def test_what_another_gateway_has_reported_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    report = reporting.Report("1-A", 1.0, {"post": reporting.PlatformReport(False, "shut")}, taken=3)
    reporting.write(tmp_path, report)
    assert reporting.read(tmp_path, "1-A") == report
    assert reporting.read(tmp_path, "2-B") is None
    assert (tmp_path / reporting.FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / reporting.FILE).write_text("{")
    assert reporting.read(tmp_path, "1-A") is None
    assert [path.name for path in tmp_path.iterdir()] == [reporting.FILE], "no draft is left"


def test_a_report_that_can_not_be_written_disturbs_nobody(tmp_path: Path) -> None:
    reporting.write(tmp_path / "nowhere", reporting.Report("1-A", 1.0))


def test_a_service_manager_that_does_not_listen_disturbs_nobody(tmp_path: Path) -> None:
    for address in (None, "", str(tmp_path / "nobody"), "@nobody-there", "x" * 500, os.fspath(tmp_path)):
        notify(address, "READY=1")
