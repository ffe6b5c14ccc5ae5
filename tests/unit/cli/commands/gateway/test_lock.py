"""The lock of a gateway, in one process: what it says, and what is made of what others have left in its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread.cli.commands.gateway import report as gateway_report
from everthread.cli.commands.gateway.lock import FILE, GatewayLock, LockHolder, LockState, read_lock
from everthread.cli.commands.gateway.systemd import notify
from everthread.domain.errors import Busy, StoreUnwritable

ME = LockHolder(1, "1-A", 1_790_000_000.0)


def test_whoever_holds_the_lock_is_seen_and_nobody_else(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == LockState(False)
    lock = GatewayLock(tmp_path)
    lock.acquire(ME)
    assert read_lock(tmp_path) == LockState(True, ME)
    told = LockHolder(1, "1-A", 1_790_000_000.0, port=8642)
    lock.write_holder(told)
    assert read_lock(tmp_path) == LockState(True, told)
    with pytest.raises(Busy, match="process 1, since"):
        GatewayLock(tmp_path).acquire(ME)
    lock.release()
    lock.release()
    assert read_lock(tmp_path) == LockState(False)
    GatewayLock(tmp_path).acquire(ME)


def test_a_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    first, second = GatewayLock(tmp_path), GatewayLock(tmp_path)
    first.acquire(ME)
    first.release()
    (tmp_path / FILE).unlink()
    second.acquire(ME)
    assert read_lock(tmp_path).running


@pytest.mark.parametrize("left", [b"", b"{", b"\xff" * 5000, b'{"pid": "x"}', b"null", b"[" * 500])
def test_whatever_is_left_in_the_file_blocks_nobody(tmp_path: Path, left: bytes) -> None:
    (tmp_path / FILE).write_bytes(left)
    assert read_lock(tmp_path) == LockState(False)
    lock = GatewayLock(tmp_path)
    lock.acquire(ME)
    assert read_lock(tmp_path) == LockState(True, ME)
    lock.release()


def test_a_home_that_can_not_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(StoreUnwritable, match="home"):
        GatewayLock(tmp_path / "home").acquire(ME)


def test_what_another_gateway_has_reported_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    report = gateway_report.GatewayReport("1-A", 1.0, {"post": gateway_report.PlatformReport(False, "shut")}, taken=3)
    gateway_report.write_report(tmp_path, report)
    assert gateway_report.read_report(tmp_path, "1-A") == report
    assert gateway_report.read_report(tmp_path, "2-B") is None
    assert (tmp_path / gateway_report.FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / gateway_report.FILE).write_text("{")
    assert gateway_report.read_report(tmp_path, "1-A") is None
    assert [path.name for path in tmp_path.iterdir()] == [gateway_report.FILE], "no draft is left"


def test_a_report_that_can_not_be_written_disturbs_nobody(tmp_path: Path) -> None:
    gateway_report.write_report(tmp_path / "nowhere", gateway_report.GatewayReport("1-A", 1.0))


def test_a_service_manager_that_does_not_listen_disturbs_nobody(tmp_path: Path) -> None:
    for address in (None, "", str(tmp_path / "nobody"), "@nobody-there", "x" * 500, os.fspath(tmp_path)):
        notify(address, "READY=1")
