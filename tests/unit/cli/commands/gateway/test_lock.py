"""The lock of a gateway in one process: its holder, and leftovers in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.cli.commands.gateway.lock import FILE, GatewayLock, LockHolder, LockState, read_lock
from everthread.domain.errors import Busy, StoreUnwritable

ME = LockHolder(1, "1-A", 1_790_000_000.0)


def test_the_holder_of_the_lock_is_known(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == LockState(False)
    lock = GatewayLock(tmp_path)
    lock.acquire(ME)
    assert read_lock(tmp_path) == LockState(True, ME)
    with_port = LockHolder(1, "1-A", 1_790_000_000.0, port=8642)
    lock.write_holder(with_port)
    assert read_lock(tmp_path) == LockState(True, with_port)
    with pytest.raises(Busy, match="process 1, since"):
        GatewayLock(tmp_path).acquire(ME)
    lock.release()
    lock.release()
    assert read_lock(tmp_path) == LockState(False)
    GatewayLock(tmp_path).acquire(ME)


def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    first, second = GatewayLock(tmp_path), GatewayLock(tmp_path)
    first.acquire(ME)
    first.release()
    (tmp_path / FILE).unlink()
    second.acquire(ME)
    assert read_lock(tmp_path).running


@pytest.mark.parametrize("left", [b"", b"{", b"\xff" * 5000, b'{"pid": "x"}', b"null", b"[" * 500])
def test_leftovers_in_the_file_do_not_block(tmp_path: Path, left: bytes) -> None:
    (tmp_path / FILE).write_bytes(left)
    assert read_lock(tmp_path) == LockState(False)
    lock = GatewayLock(tmp_path)
    lock.acquire(ME)
    assert read_lock(tmp_path) == LockState(True, ME)
    lock.release()


def test_an_unwritable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(StoreUnwritable, match="home"):
        GatewayLock(tmp_path / "home").acquire(ME)
