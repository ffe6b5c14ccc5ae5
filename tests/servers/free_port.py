"""A port for a server that is told its port, and listens there a good while later."""

from __future__ import annotations

import random
import socket

# Below those that systems give to whoever asks for any: tests that run meanwhile ask for thousands of those.
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
