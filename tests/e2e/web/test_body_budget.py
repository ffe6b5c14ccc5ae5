"""Bodies in memory are bounded: many connections that each send a large body cannot fill the memory."""

from __future__ import annotations

import re
import selectors
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.gateway_process_fixture import GatewayProcessFixture, model, until

CONNECTIONS = 600
BODY_BYTES = 2 * 1024 * 1024 - 1024
PIECE = b"x" * 32 * 1024
ROUNDS = BODY_BYTES // len(PIECE)
CONNECTION_KIB = 200
GROWTH_MIB_MAX = {"webhook": 16 + CONNECTIONS * CONNECTION_KIB / 1024, "api": 64 + CONNECTIONS * CONNECTION_KIB / 1024}
"""The documented bound: 64 MiB of bodies, of which 16 MiB without a token, and 200 KiB for each connection."""


def memory_mib(process_id: int, name: str) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def connect(port: int, number: int, head: bytes) -> socket.socket:
    # Eight client addresses: the limit of one address is not what protects here.
    client = socket.socket()
    client.bind((f"127.0.0.{1 + number % 8}", 0))
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    client.send(head)
    return client


def attack(port: int, head: bytes, rounds: int) -> dict[bytes, int]:
    """Send a piece on every connection in turn, without the last byte of any body. Count the status of the answers."""
    selector, statuses = selectors.DefaultSelector(), dict[bytes, int]()
    clients = [connect(port, number, head) for number in range(CONNECTIONS)]
    for client in clients:
        selector.register(client, selectors.EVENT_READ)
    try:
        for _ in range(rounds):
            for client in clients:
                try:
                    client.send(PIECE)
                except (BlockingIOError, OSError):
                    pass
            time.sleep(0.1)
            for key, _ in selector.select(0):
                client: Any = key.fileobj
                try:
                    status = client.recv(4096)[9:12]
                except OSError:
                    status = b"cut"
                statuses[status] = statuses.get(status, 0) + 1
                selector.unregister(client)
                clients.remove(client)
                client.close()
    finally:
        for client in clients:
            client.close()
        selector.close()
    return statuses


@pytest.mark.parametrize("route", ["webhook", "api"])
@pytest.mark.timeout(120)
def test_slow_bodies_cannot_fill_the_memory(tmp_path: Path, route: str) -> None:
    with model() as url:
        fixture = GatewayProcessFixture(tmp_path / "home", url, http=True)
        config, port = fixture.home / "config.toml", free_port()
        hook = '[gateway.webhooks.ci]\nsecret_env = "CI_SECRET"\nscheme = "everthread"\n'
        config.write_text(config.read_text().replace("port = 0", f"port = {port}") + hook)
        token = fixture.cli("tokens", "new", "attacker").stdout
        found = re.search(r"et_[\w-]+", token)
        assert found is not None, token
        try:
            process = fixture.run(http=True, env={"CI_SECRET": "not for strangers"})
            head = {
                "webhook": f"POST /hooks/ci HTTP/1.1\r\nHost: x\r\nX-Timestamp: {int(time.time())}\r\n"
                f"X-Signature: sha256={'0' * 64}\r\n",
                "api": f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {found[0]}\r\n",
            }[route]
            until(lambda: answers(port), "the HTTP server")
            before = memory_mib(process.pid, "VmRSS")
            statuses = attack(port, f"{head}Content-Length: {BODY_BYTES}\r\n\r\n".encode(), ROUNDS)
            peak = memory_mib(process.pid, "VmHWM")
            assert peak - before < GROWTH_MIB_MAX[route], (before, peak, statuses)
            assert statuses.get(b"503", 0) + statuses.get(b"429", 0) > CONNECTIONS / 2
            until(lambda: answers(port), "a healthy gateway")
        finally:
            fixture.leave()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return client.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
