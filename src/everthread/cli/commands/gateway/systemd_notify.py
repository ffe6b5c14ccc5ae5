"""Notify systemd of the state of the service (sd_notify)."""

from __future__ import annotations

import contextlib
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


def notify(address: str | None, state: str) -> None:
    """Send a state to the socket of systemd, if there is one. Errors are ignored."""
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.setblocking(False)
        to.sendto(state.encode(), name)
