"""Creating the environment of Hermes Agent plugins: completely or not at all. tests/servers run it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everthread.cli.commands.setup.hermes_env import install, is_installed
from everthread.cli.commands.setup.installer import exclusive_install
from everthread.domain.errors import StoreBusy, Unavailable


def test_a_failed_setup_leaves_nothing_behind_and_names_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nmkdir -p $3/bin\necho 'ERROR: no such thing'\nexit 4\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    folder = tmp_path / "home" / "hermes"
    with pytest.raises(
        Unavailable, match=r"could not install hermes-agent \(exit code 4\): ERROR: no such thing; try again"
    ):
        install(folder, lambda done, whole: None)
    assert not is_installed(folder)
    assert [one.name for one in folder.parent.iterdir()] == [".hermes.lock"]


def test_two_setups_do_not_run_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "hermes"

    def second(done: int, whole: int) -> None:
        raise AssertionError

    folder.parent.mkdir()
    with exclusive_install(folder, "Hermes Agent"), pytest.raises(StoreBusy):
        install(folder, second)
