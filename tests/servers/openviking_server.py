"""The real OpenViking, for tests: installed once into `.cache/servers/openviking`, with a stub model."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.provider_backend import ProviderBackend
from tests.runtime import ME
from tests.servers.environments import environment
from tests.servers.free_port import free_port

from everthread.adapters.memory.common.encoding import decode_id, encode_id
from everthread.adapters.memory.openviking.codec import SessionMessage, parse_message, parse_origin, parse_tags
from everthread.adapters.memory.openviking.provider import OpenViking
from everthread.testing.backend_model.embedding import DIMENSIONS
from everthread.testing.backend_model.server import BackendModel
from everthread.testing.contracts.memory_provider import Faults
from everthread.testing.recording_provider import StoredEntry

KEY = "root-key-of-the-tests"
START_S_MAX = 300
KINDS = {"work": "delegation"}
KEEPS = r"POST /api/v1/sessions/[^/]+/messages/batch"
"""Requests that store texts."""


@dataclass
class OpenVikingServer:
    """A running server and its contents."""

    address: str
    model: BackendModel
    folder: Path
    server: "subprocess.Popen[bytes]"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def ask(self, account: str, user: str, path: str, **query: str) -> Any:
        """Return the result of a GET; None if not found."""
        return self._asked(account, user, f"{path}?{urllib.parse.urlencode(query)}")

    def post(self, account: str, user: str, path: str, body: object) -> Any:
        return self._asked(account, user, path, json.dumps(body).encode())

    def _asked(self, account: str, user: str, path: str, body: bytes | None = None) -> Any:
        who = {"Authorization": f"Bearer {KEY}", "X-OpenViking-Account": account, "X-OpenViking-User": user}
        headers = {**who, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/api/v1{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())["result"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def users(self, account: str) -> list[str]:
        """Users of an account. The server lists them late, if at all."""
        return sorted(each.name for each in (self.folder / "data" / "viking" / account / "user").glob("*"))

    def sessions(self, account: str, user: str) -> list[str]:
        return sorted(one["session_id"] for one in self.ask(account, user, "/sessions"))

    def lines(self, account: str, user: str, uri: str) -> list[SessionMessage]:
        rows = (self.ask(account, user, "/content/read", uri=f"{uri}/messages.jsonl") or "").split("\n")
        found = [parse_message(row) for row in rows if row]
        assert None not in found, rows
        return [line for line in found if line is not None]

    def archives(self, account: str, user: str, name: str) -> dict[str, bool]:
        """Archives of a session, each with True if memories were extracted from it."""
        root = f"viking://user/{user}/sessions/{name}/history"
        uris = sorted(self.ask(account, user, "/fs/ls", uri=root, simple="true") or [])
        return {uri: self.ask(account, user, "/content/read", uri=f"{uri}/.done") is not None for uri in uris}

    def held(self, account: str) -> list[StoredEntry]:
        """Contents, oldest first in each session. Archives of failed commits are ignored."""
        effects: list[StoredEntry] = []
        for user in self.users(account):
            for name in self.sessions(account, user):
                effects += self._session(account, user, name)
            effects += self._notes(account, user)
        return effects

    def everything(self, account: str) -> str:
        """All files that the server stores for an account, without its task list."""
        root = self.folder / "data" / "viking" / account
        files = [each for each in root.rglob("*") if each.is_file() and "tasks" not in each.relative_to(root).parts]
        return "\n".join(f"{each}\n{each.read_bytes().decode(errors='replace')}" for each in files)

    def _session(self, account: str, user: str, name: str) -> list[StoredEntry]:
        session, archives = decode_id(name) or name, self.archives(account, user, name)
        effects: list[StoredEntry] = []
        for uri in archives:
            # Messages of a failed commit were sent again.
            if archives[uri]:
                effects += _effects(session, self.lines(account, user, uri))
        live = _effects(session, self.lines(account, user, f"viking://user/{user}/sessions/{name}"))
        if effects and not live:
            effects.append(StoredEntry(session, "close", "all that was said is committed"))
        return effects + live

    def _notes(self, account: str, user: str) -> list[StoredEntry]:
        root = f"viking://user/{user}/memories/notes"
        found: list[StoredEntry] = []
        for uri in sorted(self.ask(account, user, "/fs/ls", uri=root, simple="true") or []):
            attributes = self.ask(account, user, "/fs/attrs", uri=uri)
            text = self.ask(account, user, "/content/read", uri=uri)
            if attributes and text:
                found.append(StoredEntry(parse_origin(attributes["attrs"]["tags"])[0], "note", text))
        return found


def _effects(session: str, lines: list[SessionMessage]) -> list[StoredEntry]:
    effects: list[StoredEntry] = []
    for first in lines:
        if first.mark is not None and first.mark.part == 0:
            said = [each for each in lines if each.mark and each.mark.seq == first.mark.seq]
            text = "\n".join(f"{each.role}: {each.text}" for each in said)
            effects.append(
                StoredEntry(session, KINDS.get(first.mark.kind) or first.mark.kind, text, turn=first.mark.turn)
            )
    return effects


def back_end_of(core: OpenVikingServer, faults: Faults, settings: dict[str, Any], account: str) -> ProviderBackend:
    """Back end of one account for the scenarios."""

    def parent_of(session_id: str) -> str:
        kept = core.ask(account, ME, f"/sessions/{encode_id(session_id)}")
        return parse_tags(kept["memory_extraction_config"]["events"]["tags"]).parent

    return ProviderBackend(
        f"{OpenViking.__module__}:{OpenViking.__qualname__}",
        settings,
        faults,
        lambda: core.held(account),
        settles_s=5.0,
        parent_of=parent_of,
        attempt_s=1.5,
        tool=("openviking_look_up", "words"),
    )


@contextmanager
def openviking() -> Iterator[OpenVikingServer]:
    """Start everything and stop it again. Takes half a minute; the first time, two."""
    place = environment("openviking")
    folder = Path(tempfile.mkdtemp(prefix="everthread-openviking-"))
    try:
        with BackendModel().in_thread() as model:
            port = free_port()
            (folder / "ov.conf").write_text(json.dumps(_settings(port, folder, model)))
            with (folder / "server.log").open("wb") as log:
                server = subprocess.Popen(
                    [place / "bin" / "openviking-server", "--config", folder / "ov.conf"],
                    env={"HOME": str(folder), "PATH": os.environ["PATH"]},
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                )
            core = OpenVikingServer(f"http://127.0.0.1:{port}", model, folder, server)
            try:
                _wait_for(core)
                yield core
            finally:
                # Kill it: its data is not kept, and a clean shutdown is slow.
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(port: int, folder: Path, model: BackendModel) -> dict[str, Any]:
    served = {"provider": "openai", "api_base": model.base_url, "api_key": "none", "model": "stub"}
    return {
        "server": {"host": "127.0.0.1", "port": port, "auth_mode": "trusted", "root_api_key": KEY},
        "storage": {"workspace": str(folder / "data")},
        "embedding": {"dense": {**served, "dimension": DIMENSIONS, "input": "text"}, "max_retries": 0},
        "vlm": {**served, "max_retries": 0, "timeout": 20},
        "log": {"level": "WARNING"},
    }


def _wait_for(core: OpenVikingServer) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and core.server.poll() is None:
        try:
            with urllib.request.urlopen(f"{core.address}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(f"OpenViking did not start:\n{(core.folder / 'server.log').read_text()[-3000:]}")
