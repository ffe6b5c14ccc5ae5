"""A home with a model that answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.model_endpoint import model_endpoint

from everthread.testing.model_server.server import ModelServer

KEY = "hunter2-hunter2"


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with model_endpoint(key=KEY, models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    text = f'model = "mine/good"\n[providers.mine]\nbase_url = "{server.base_url}"\napi_key_env = "MINE_KEY"\n'
    (home / "config.toml").write_text(text)
    (home / ".env").write_text(f"MINE_KEY={KEY}\n")
    (home / ".env").chmod(0o600)
    return home


def command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "everthread", "--home", str(home), *arguments]


def environment(**more: str) -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | more


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(home, *arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(**variables),
        timeout=18,
        check=False,
    )


def ask(home: Path, text: str) -> dict[str, Any]:
    done = everthread(home, "-p", text, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
