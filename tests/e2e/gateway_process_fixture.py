"""A gateway as a real process, on a home with a file-based platform and a model server on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "gateway_worker.py"
PATIENCE_S = 15.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class GatewayProcessFixture:
    def __init__(self, home: Path, model_url: str, *, drain_s: float = 2.0, http: bool = False) -> None:
        self.home = home
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.toml").write_text(
            f'model = "stub/one"\n[providers.stub]\nbase_url = "{model_url}"\n[review]\nevery_turns = 0\n'
            f"[platforms.post]\nallow_all = true\n[gateway]\ndrain_s = {drain_s}\n"
            f"[gateway.http]\nport = 0\nenabled = {'true' if http else 'false'}\n"
        )
        self.processes: list[subprocess.Popen[str]] = []

    def command(self, *arguments: str, **ways: object) -> list[str]:
        return [sys.executable, str(WORKER), json.dumps(ways), "--home", str(self.home), *arguments]

    def run(self, *, up: bool = True, env: dict[str, str] | None = None, **ways: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command("gateway", "run", **ways),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.processes.append(process)
        if up:
            assert process.stdout is not None
            assert "Serving" in process.stdout.readline(), process.stderr and process.stderr.read()
        return process

    def ask(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a `gateway` command in another process."""
        return self.cli("gateway", *arguments, env=env)

    def cli(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in another process."""
        return subprocess.run(
            [sys.executable, "-m", "everthread", "--home", str(self.home), *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            env={**os.environ, **(env or {})},
            check=False,
        )

    def say(self, text: str, chat: str = "1") -> None:
        with (self.home / "in.jsonl").open("a") as file:
            file.write(json.dumps({"chat": chat, "text": text}) + "\n")

    def set_clock(self, ahead_s: float) -> None:
        """Set the clock of processes that run with `idle_s`: seconds that have passed since the test began."""
        written = self.home / "ahead.new"
        written.write_text(str(ahead_s))
        written.replace(self.home / "ahead")

    def taken(self) -> int:
        file = self.home / "taken"
        return int(file.read_text() or 0) if file.exists() else 0

    def out(self, chat: str = "") -> list[str]:
        return [sent["text"] for sent in lines(self.home / "out.jsonl") if not chat or sent["chat"] == chat]

    def end(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send the signal; return the exit code and the time until the process ended."""
        begun = time.monotonic()
        process.send_signal(number)
        code = process.wait(PATIENCE_S)
        return code, time.monotonic() - begun

    def leave(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def model(*, delay_ms: int = 0, say: str = "") -> Iterator[str]:
    """Run a stub model server and yield its address."""
    command = [sys.executable, "-m", "everthread.testing.model_server.server", "--delay-ms", str(delay_ms)]
    command += ["--say", say] if say else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def silent_model() -> Iterator[str]:
    """Model server that accepts a request and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
