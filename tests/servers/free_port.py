"""Ports for servers that take a port number and start listening later."""

from __future__ import annotations

import random
import socket

# Below the ephemeral range, from which concurrent tests take thousands of ports.
PORTS = range(15_000, 32_000)


def free_port() -> int:
    """Return a free port."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as listening:
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port among a hundred")
