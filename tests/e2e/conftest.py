"""Fixtures for tests that run commands on a home with some history."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.used_home import UsedHome, create_used_home


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Share bytecode, as after an installation: only the first command compiles the sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> UsedHome:
    return asyncio.run(create_used_home(tmp_path_factory.mktemp("original") / "home"))


@pytest.fixture
def lived(original: UsedHome, tmp_path: Path) -> UsedHome:
    """A copy of the home, for one test."""
    shutil.copytree(original.home, tmp_path / "home")
    return UsedHome(tmp_path / "home", original.lisbon, original.branch, original.chat, original.note)
