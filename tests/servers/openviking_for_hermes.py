"""The real OpenViking, as Hermes Agent's plugin for it needs it: installed once into `.cache/servers/openviking`."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
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

from everthread.testing.back_end_model import BackEndModel
from everthread.testing.embedding import DIMENSIONS

PLACE = Path(__file__).parents[2] / ".cache" / "servers" / "openviking"
WANTED = "openviking==0.5.2"
KEY = "root-key-of-the-tests"
USER = "hermes"
INSTALL_S_MAX, START_S_MAX = 900, 300


@dataclass
class Viking:
    """A server that runs. Each test has an account of its own."""

    address: str
    folder: Path
    server: "subprocess.Popen[bytes]"

    def ask(self, account: str, path: str, **query: str) -> Any:
        """The result of a GET; None if there is nothing."""
        url = f"{self.address}/api/v1{path}?{urllib.parse.urlencode(query)}"
        who = {"Authorization": f"Bearer {KEY}", "X-OpenViking-Account": account, "X-OpenViking-User": USER}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=who), timeout=30) as answer:
                return json.loads(answer.read())["result"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def said(self, account: str, session: str) -> list[str]:
        """What people said in a session, in its order: what was committed, and then what was not yet."""
        root = f"viking://user/{USER}/sessions/{session}"
        archives = sorted(self.ask(account, "/fs/ls", uri=f"{root}/history", simple="true") or [])
        found: list[str] = []
        for uri in (*archives, root):
            rows = (self.ask(account, "/content/read", uri=f"{uri}/messages.jsonl") or "").split("\n")
            messages = [json.loads(row) for row in rows if row]
            found += [_text(message) for message in messages if message["role"] == "user"]
        return found

    def commits(self, account: str, session: str) -> int:
        root = f"viking://user/{USER}/sessions/{session}/history"
        return len(self.ask(account, "/fs/ls", uri=root, simple="true") or [])


def _text(message: dict[str, Any]) -> str:
    return " ".join(part.get("text", "") for part in message.get("parts", ()))


@contextmanager
def viking() -> Iterator[Viking]:
    """Starts everything and stops it again."""
    _installed()
    folder = Path(tempfile.mkdtemp(prefix="everthread-viking-"))
    try:
        with BackEndModel().in_thread() as model:
            port = _free_port()
            (folder / "ov.conf").write_text(json.dumps(_settings(port, folder, model)))
            with (folder / "server.log").open("wb") as log:
                server = subprocess.Popen(
                    [PLACE / "bin" / "openviking-server", "--config", folder / "ov.conf"],
                    env={"HOME": str(folder), "PATH": os.environ["PATH"]},
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                )
            try:
                _wait_for(house := Viking(f"http://127.0.0.1:{port}", folder, server))
                yield house
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> None:
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = PLACE / ".ready"
        if ready.exists() and ready.read_text() == WANTED:
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True, timeout=INSTALL_S_MAX)
        python = PLACE / "bin" / "python"
        quickly = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, WANTED]
        # uv does not read pip's settings (mirrors, certificates): where it fails, pip does the same job.
        if subprocess.run(["nice", "-n", "10", *quickly], check=False, timeout=INSTALL_S_MAX).returncode:
            slowly = [python, "-m", "pip", "install", "-q", WANTED]
            subprocess.run(["nice", "-n", "10", *slowly], check=True, timeout=INSTALL_S_MAX)
        ready.write_text(WANTED)


def _settings(port: int, folder: Path, model: BackEndModel) -> dict[str, Any]:
    served = {"provider": "openai", "api_base": model.base_url, "api_key": "none", "model": "stub"}
    return {
        "server": {"host": "127.0.0.1", "port": port, "auth_mode": "trusted", "root_api_key": KEY},
        "storage": {"workspace": str(folder / "data")},
        "embedding": {"dense": {**served, "dimension": DIMENSIONS, "input": "text"}, "max_retries": 0},
        "vlm": {**served, "max_retries": 0, "timeout": 20},
        "log": {"level": "WARNING"},
    }


def _wait_for(house: Viking) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and house.server.poll() is None:
        try:
            with urllib.request.urlopen(f"{house.address}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(f"OpenViking did not start:\n{(house.folder / 'server.log').read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
