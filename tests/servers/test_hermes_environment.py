"""Test creating an environment for Hermes Agent plugins in a home, as `everthread setup memory` does.

The environment gets only a small package here. Other tests install Hermes Agent itself.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from everthread.cli.commands.setup import hermes_env as hermes_environment
from everthread.cli.commands.setup.hermes_env import SIZE_BYTES

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hermes_environment.shutil, "which", lambda name: None)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The lock of a minimal wheel."""
    path = tmp_path / "little-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("little.py", "WORD = 'larkspur'\n")
        file.writestr("little-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: little\nVersion: 1.0\n")
        file.writestr("little-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("little-1.0.dist-info/RECORD", "")
    lock = tmp_path / "little.lock"
    lock.write_text(f"little @ {path.as_uri()} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    return lock


def test_an_environment_is_created_once_and_works(tmp_path: Path, lock: Path) -> None:
    folder, seen = tmp_path / "home" / "hermes", list[int]()
    assert hermes_environment.install(folder, lambda done, whole: seen.append(done), lock)
    said = subprocess.run(
        [folder / "bin" / "python", "-c", "import little; print(little.WORD)"], capture_output=True, check=True
    )
    assert said.stdout == b"larkspur\n"
    assert seen[-1] == SIZE_BYTES
    assert not hermes_environment.install(folder, lambda done, whole: None, tmp_path / "not read a second time")
    assert sorted(one.name for one in folder.parent.iterdir()) == [".hermes.lock", "hermes"]
