"""Requests without a token through a real nginx, and with forged addresses."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tests.attacks.attempts import Attempts
from tests.attacks.nginx import SERVERS, nginx_in_front_of
from tests.attacks.target import Target, free_ports, run_gateway, write_home

_ROUTES = (
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/api/sessions"),
    ("GET", "/api/events"),
    ("GET", "/metrics"),
    ("GET", "/api/sessions/{id}"),
    ("GET", "/api/sessions/{id}/messages"),
    ("GET", "/api/sessions/{id}/export"),
    ("PATCH", "/api/sessions/{id}"),
    ("DELETE", "/api/sessions/{id}"),
    ("POST", "/api/sessions/{id}/fork"),
    ("POST", "/api/sessions/{id}/resume"),
)
_FORGED: tuple[dict[str, str], ...] = (
    {},
    {"X-Forwarded-For": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1;host=localhost"},
    {"Host": "localhost", "X-Real-IP": "::1"},
)
REFUSALS = (401, 403, 429)
_MESSAGE = {"model": "everthread", "messages": [{"role": "user", "content": "What is my secret number?"}]}


async def attack(target: Target, folder: Path) -> Attempts:
    attempts = Attempts("requests without a token through nginx")
    # A home whose user has never made a token: whatever protects it must be the default.
    [port] = free_ports(1)
    fresh = folder / "fresh"
    write_home(fresh, folder / "fresh-work", target.model.base_url, "http://127.0.0.1:9", port)
    with run_gateway(fresh, port):
        token = (fresh / "local.token").read_text().strip()
        await _ask_through_nginx(target, attempts, port, folder / "nginx-fresh", "nobody has made a token", token)
    await _ask_through_nginx(target, attempts, target.port, folder / "nginx", "with tokens", target.tokens["owner"])
    return attempts


async def _ask_through_nginx(
    target: Target, attempts: Attempts, port: int, folder: Path, name: str, token: str
) -> None:
    with nginx_in_front_of(port, folder, free_ports(len(SERVERS))) as servers:
        for (server, listening), (method, path), forged in product(servers.items(), _ROUTES, _FORGED):
            url = f"http://127.0.0.1:{listening}"
            body = _MESSAGE if "completions" in path else {"key": "desk"} if method in ("POST", "PATCH") else None
            session = path.replace("{id}", target.sessions["owner"])
            answer = await target.ask(method, session, "", body, forged, url=url)
            await target.end_delay(token, f"http://127.0.0.1:{port}")
            got = target.leaks(answer.everything) or (str(answer.status) if answer.status not in REFUSALS else "")
            attempts.record(f"{name}, {server}: {method} {path} with {list(forged)}", got)
        # The proxies work: an owner with a token is served.
        for server, listening in servers.items():
            answer = await target.ask("GET", "/api/sessions", token, url=f"http://127.0.0.1:{listening}")
            assert answer.status == 200, f"nginx ({server}) serves nobody: {answer}"
