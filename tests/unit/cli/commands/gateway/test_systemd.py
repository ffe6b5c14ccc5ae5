"""Notifications to systemd. The unit is tested in tests/e2e."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from everthread.cli.commands.gateway.systemd import notify


def test_a_state_is_sent_to_the_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        notify(str(tmp_path / "notify"), "READY=1")
        assert listener.recv(100) == b"READY=1"


def test_a_missing_socket_does_not_raise(tmp_path: Path) -> None:
    for address in (None, "", str(tmp_path / "nobody"), "@nobody-there", "x" * 500, os.fspath(tmp_path)):
        notify(address, "READY=1")
