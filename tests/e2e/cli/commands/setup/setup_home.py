"""A home with a model server that accepts one key, and `everthread setup` run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.chat_home import Terminal
from tests.e2e.model_endpoint import model_endpoint

from everthread.config.schema import built_in_providers
from everthread.testing.model_server.server import ModelServer

KEY = "sk-right-0123456789abcdefghij"


CONFIG = '# mine\n[limits]\nturn_s = 30  # short\n\n[providers.mine]\nbase_url = "{url}"\napi_key_env = "MINE_KEY"\n'


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with model_endpoint(key=KEY, models=("good",)) as endpoint:
        yield endpoint


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(CONFIG.format(url=server.base_url))
    (home / ".env").write_text("# others\nOTHER=1\n")
    (home / ".env").chmod(0o600)
    return home


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the API keys of the developer from the environment."""
    for provider in built_in_providers().values():
        if provider.api_key_env:
            monkeypatch.delenv(provider.api_key_env, raising=False)


def setup(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), "setup", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
        timeout=18,
        check=False,
    )


def unchanged(home: Path, server: ModelServer) -> bool:
    env = (home / ".env").read_text()
    return (home / "config.toml").read_text() == CONFIG.format(url=server.base_url) and env == "# others\nOTHER=1\n"


def typed(home: Path, *answers: tuple[str, str]) -> tuple[int, str]:
    terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "setup"])
    try:
        for question, answer in answers:
            terminal.expect(question)
            terminal.type(f"{answer}\n")
        return terminal.ended(), terminal.seen
    finally:
        terminal.close()
