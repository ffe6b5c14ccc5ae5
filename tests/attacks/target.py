"""The attacked installation: an owner with secrets, two guests, a group, and every process that serves them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from everthread.testing.telegram.protocol import Group
from everthread.testing.telegram.server import TOKEN, TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers
from tests.attacks.obedient_model import SECRET, ObedientModel, new_secret

OWNER, ANN, BOB = 1, 7, 8
"""Telegram users. The owner of the installation is linked to the first one."""
GROUP = -100
START_S_MAX = 90.0
ANSWER_S_MAX = 90.0
CLI_S_MAX = 120.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def everything(self) -> str:
        return f"{dict(self.headers)} {self.body.decode(errors='replace')}"

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Target:
    """A running gateway with its users. Every answer to a guest is searched for the secrets of others."""

    home: Path
    folder: Path
    """A folder beside the home, where the MCP server works."""
    url: str
    http: aiohttp.ClientSession
    model: ObedientModel
    people: TelegramUsers
    process: subprocess.Popen[bytes]
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    """Secrets by name: `rules`, `note`, `memo`, `skill`, `talk`, `env` of the owner, `ann` and `bob` of the guests."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    """API tokens by person: `owner`, `ann`, `bob`, `revoked`."""
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    """Ids of sessions by person."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(
        self,
        method: str,
        path: str,
        token: str = "",
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        url: str = "",
    ) -> Answer:
        """Send a request. The path is sent as it is, without being quoted again."""
        answer = await self._send(method, path, token, body, headers, url or self.url)
        if answer.status == HTTPStatus.UNAUTHORIZED and not url:
            await self.end_delay(self.tokens["owner"], self.url)
        return answer

    async def end_delay(self, token: str, url: str) -> None:
        """Send a valid request. Otherwise the answers to this address would be delayed more with each failure."""
        answer = await self._send("GET", "/api/sessions", token, None, None, url)
        assert answer.status == HTTPStatus.OK, answer

    async def _send(
        self, method: str, path: str, token: str, body: object, headers: Mapping[str, str] | None, url: str
    ) -> Answer:
        sent = {"Authorization": f"Bearer {token}", **(headers or {})} if token else dict(headers or {})
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        address = URL(url + path, encoded=True)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with self.http.request(method, address, data=data, headers=sent, timeout=timeout) as response:
            if response.content_type == "text/event-stream":
                with suppress(TimeoutError):
                    return Answer(response.status, response.headers, await _first_bytes(response))
                return Answer(response.status, response.headers, b"")
            return Answer(response.status, response.headers, await response.read())

    async def say(self, person: str, text: str, conversation: str = "desk") -> Answer:
        """Send a message in a conversation over HTTP."""
        body = {"model": "everthread", "messages": [{"role": "user", "content": text}]}
        return await self.ask(
            "POST", "/v1/chat/completions", self.tokens[person], body, {"X-Session-Key": conversation}
        )

    async def chat(self, user: int, text: str, chat: int | None = None, **more: Any) -> str:
        """Send a message on Telegram; return what the bot has written in that chat since."""
        place = user if chat is None else chat
        await self.people.refresh()
        before = len(self.people.sent(place))
        await self.people.say(user, text, chat=chat, **more)
        await self.people.until(
            lambda: len(self.people.sent(place)) > before and _is_answer(self.people.sent(place)[-1].text),
            f"an answer in chat {place}",
            ANSWER_S_MAX,
        )
        # Streamed answers are edited: read them again after a moment.
        await asyncio.sleep(0.05)
        await self.people.refresh()
        return "\n".join(one.text for one in self.people.log if one.what in ("sent", "edited") and one.chat == place)

    def leaks(self, text: str, *own: str) -> str:
        """Return the names of the secrets in a text, except those the reader may know."""
        found = set(SECRET.findall(text))
        return ", ".join(name for name, word in self.secrets.items() if word in found and name not in own)

    def cli(self, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of the owner without a terminal."""
        return subprocess.run(
            [sys.executable, "-m", "everthread", "--home", str(home or self.home), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=CLI_S_MAX,
            check=False,
        )

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.cli, *arguments)

    def wiped(self) -> Collection[str]:
        """Return the ids of the calls that the lying MCP server has carried out."""
        return {file.name.rpartition("-")[2] for file in self.folder.glob("wiped-*")}


def _is_answer(text: str) -> bool:
    """Tell an answer from a notice or a question of the gateway."""
    return "I see " in text or text.startswith(("Error", "There", "Too many", "That command", "Ask me"))


async def _first_bytes(response: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(0.2):
        return await response.content.read(65_536)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def write_home(home: Path, folder: Path, model_url: str, telegram_url: str, port: int) -> dict[str, str]:
    """Write settings, rules, notes and a skill of the owner; return the secrets in them."""
    secrets = {name: new_secret(name) for name in ("rules", "note", "memo", "skill", "talk", "env", "ann", "bob")}
    home.mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    (home / "config.toml").write_text(f"""\
model = "stub/one"
[providers.stub]
base_url = "{model_url}"
[limits]
iterations = 6
[review]
every_turns = 25
[gateway]
messages_per_minute = 100000
approval_s = 5.0
[gateway.links]
me = ["telegram:{OWNER}"]
[gateway.http]
port = {port}
[gateway.webhooks.ci]
secret_env = "CI_SECRET"
scheme = "everthread"
template = "Build {{build.id}} is {{build.state}}"
[gateway.webhooks.forge]
secret_env = "FORGE_SECRET"
scheme = "github"
[platforms.telegram]
base_url = "{telegram_url}"
allow = ["{OWNER}", "{ANN}", "{BOB}"]
groups = "shared"
trigger = "all"
""")
    (home / ".env").write_text(
        f"TELEGRAM_BOT_TOKEN={TOKEN}\nCI_SECRET={secrets['env']}\nFORGE_SECRET={secrets['env']}-forge\n"
    )
    (home / ".env").chmod(0o600)
    server = {"command": sys.executable, "args": [str(Path(__file__).with_name("lying_mcp_server.py")), str(folder)]}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"numbers": server}}))
    (home / "AGENTS.md").write_text(f"Standing rule of the owner: {secrets['rules']}\n")
    (home / "memory").mkdir(mode=0o700)
    (home / "memory" / "USER.md").write_text(f"The owner's account is {secrets['note']}\n")
    (home / "memory" / "MEMORY.md").write_text(f"The cellar code is {secrets['memo']}\n")
    skill = home / "skills" / "taxes"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        f"---\nname: taxes\ndescription: How the owner pays taxes ({secrets['skill']})\n---\nUse {secrets['skill']}.\n"
    )
    return secrets


@asynccontextmanager
async def target(folder: Path) -> AsyncIterator[Target]:
    """Start the installation and let its people talk."""
    [port] = free_ports(1)
    async with ObedientModel() as model, TelegramEmulator(limits=False) as telegram:
        home, work = folder / "home", folder / "work"
        secrets = write_home(home, work, model.base_url, telegram.base_url, port)
        with run_gateway(home, port) as process:
            async with aiohttp.ClientSession() as http, TelegramUsers(telegram.base_url) as people:
                found = Target(home, work, f"http://127.0.0.1:{port}", http, model, people, process, secrets)
                await _populate(found)
                yield found


@contextmanager
def run_gateway(home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway on a home; enter the context when it serves its port."""
    output = home.with_name(f"{home.name}-gateway.txt")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "everthread", "--home", str(home), "gateway", "run"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=home.parent,
            env={**os.environ, "XDG_STATE_HOME": str(home.parent)},
        )
    try:
        if not wait_for_port(port, process):
            raise SystemExit(f"The gateway did not start:\n{output.read_text(errors='replace')[-3000:]}")
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process accepts connections; return false if it ends or takes too long."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.05)
    return False


async def _populate(found: Target) -> None:
    """Create tokens, and let the owner and the guests tell their secrets."""
    for person, owner in (("owner", "me"), ("ann", f"telegram:{ANN}"), ("bob", f"telegram:{BOB}"), ("revoked", "me")):
        result = await found.run("tokens", "new", f"attack-{person}", "--owner", owner, "--json")
        assert result.returncode == 0, result.stderr
        found.tokens[person] = json.loads(result.stdout)["token"]
    await found.run("tokens", "revoke", "attack-revoked")
    for person, name, secret in (("owner", "desk", "talk"), ("ann", "desk", "ann"), ("bob", "desk", "bob")):
        answer = await found.say(person, f"Remember my secret number {found.secrets[secret]}.", name)
        assert answer.status == 200, answer.body
        found.sessions[person] = answer.headers["X-Session-Id"]
    await found.people.group(Group(GROUP, "The group"))
    for user in (OWNER, ANN, BOB):
        await found.people.introduce(user, f"Person {user}")
        await found.people.say(user, "/start")
    await found.chat(OWNER, f"My secret number is {found.secrets['talk']}.")
    await found.chat(ANN, f"My secret number is {found.secrets['ann']}.")
    await found.chat(BOB, f"My secret number is {found.secrets['bob']}.")
