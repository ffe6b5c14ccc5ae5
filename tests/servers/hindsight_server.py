"""The real Hindsight with its own PostgreSQL, for tests: installed once into `.cache/servers/hindsight`."""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.environments import ROOT, environment
from tests.servers.free_port import free_port

from everthread.testing.backend_model.server import BackendModel

PLACE = ROOT / "hindsight"
START_S_MAX = 240
NOBODY, NOGROUP = 65534, 65534


@dataclass
class HindsightServer:
    """A running server. `client` is a Python interpreter with the official client."""

    address: str
    model: BackendModel
    client: Path
    server: "subprocess.Popen[bytes]"


@contextmanager
def hindsight(*, extracting: bool = False) -> Iterator[HindsightServer]:
    """Start everything and stop it again. Takes half a minute; the first time, minutes.

    Without a model, the server stores texts in chunks, so its contents are predictable. With `extracting`, the stub is
    also its model, and recall returns facts and conclusions.
    """
    environment(PLACE.name)
    folder = Path(tempfile.mkdtemp(prefix="everthread-hindsight-"))
    try:
        with BackendModel().in_thread() as model, _postgres(folder) as database:
            port = free_port()
            with (folder / "server.log").open("wb") as log:
                settings = _settings(port, database, model, extracting)
                server = subprocess.Popen(
                    [PLACE / "bin" / "hindsight-api"],
                    env=settings | {"HOME": str(folder), "PATH": os.environ["PATH"]},
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                )
            core = HindsightServer(f"http://127.0.0.1:{port}", model, PLACE / "bin" / "python", server)
            try:
                _wait_for(core, folder / "server.log")
                yield core
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    """Return the address of a database. PostgreSQL refuses to run as root, so it runs as the user nobody."""
    home, port = folder / "postgres", free_port()
    home.mkdir()
    program = next(PLACE.glob("lib/python*/site-packages/pg0/bin/pg0"))
    run = [str(program)]
    if os.geteuid() == 0:
        folder.chmod(0o755)
        os.chown(home, NOBODY, NOGROUP)
        run = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOGROUP}", "--clear-groups", *run]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    named = ["--name", "everthread"]
    login = ["--port", str(port), "-u", "hindsight", "-P", "hindsight", "-n", "hindsight"]
    subprocess.run([*run, "start", *named, *login], env=env, cwd=home, check=True, capture_output=True, timeout=120)
    try:
        yield f"postgresql://hindsight:hindsight@127.0.0.1:{port}/hindsight"
    finally:
        subprocess.run([*run, "stop", *named], env=env, cwd=home, check=False, capture_output=True, timeout=60)


def _settings(port: int, database: str, model: BackendModel, extracting: bool) -> dict[str, str]:
    settings = {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "DATABASE_URL": database,
        "LLM_PROVIDER": "none",
        "SKIP_LLM_VERIFICATION": "true",
        "EMBEDDINGS_PROVIDER": "openai",
        "EMBEDDINGS_OPENAI_API_KEY": "none",
        "EMBEDDINGS_OPENAI_MODEL": "stub",
        "EMBEDDINGS_OPENAI_BASE_URL": model.base_url,
        "RERANKER_PROVIDER": "rrf",
        "WORKER_POLL_INTERVAL_MS": "50",
        "WORKER_MAX_RETRIES": "0",
    }
    if extracting:
        settings |= {
            "LLM_PROVIDER": "openai",
            "LLM_API_KEY": "none",
            "LLM_MODEL": "stub",
            "LLM_BASE_URL": model.base_url,
            "LLM_MAX_RETRIES": "1",
            "LLM_TIMEOUT": "20",
        }
    return {f"HINDSIGHT_API_{name}": value for name, value in settings.items()}


def _wait_for(core: HindsightServer, log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if core.server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{core.address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(f"Hindsight did not start:\n{log.read_text(errors='replace')[-3000:]}")
