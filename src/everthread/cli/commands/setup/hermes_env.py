"""Install Hermes Agent, for its memory plugins, into a virtual environment in the home.

The folder is complete or does not exist.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from everthread.cli.commands.setup.installer import (
    InstallerFailed,
    Progress,
    exclusive_install,
    run_installer,
    write_error,
)
from everthread.domain.errors import BadConfig, Unavailable

VERSION = "0.19.0"
"""The version that the bridge is tested with."""
SIZE_BYTES = 220_000_000
"""Approximate size on disk, for the progress bar."""
INSTALL_S_MAX = 1800.0
_POLL_S = 1.0


def is_installed(folder: Path) -> bool:
    return (folder / "bin" / "python").exists() and (folder / _marker()).exists()


def install(folder: Path, progress: Progress, requirement: str = f"hermes-agent=={VERSION}") -> bool:
    """Create the environment if it does not exist; return whether it was created."""
    if is_installed(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise write_error(folder, error) from error
    with exclusive_install(folder, "Hermes Agent"):
        if is_installed(folder):  # by a process that ended just now
            return False
        stage = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(stage, ignore_errors=True)
        try:
            _fill(stage, progress, requirement)
            shutil.rmtree(folder, ignore_errors=True)
            stage.rename(folder)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return True


def _fill(stage: Path, progress: Progress, requirement: str) -> None:
    _run((sys.executable, "-m", "venv", str(stage)), stage, lambda: None)
    python, temporary = str(stage / "bin" / "python"), stage / "tmp"
    temporary.mkdir()

    def poll() -> None:
        progress(min(_size(stage), SIZE_BYTES), SIZE_BYTES)

    if not _install_with_uv(python, requirement, stage, poll):
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
        _run((*pip, "install", "--progress-bar=off", requirement), stage, poll)
    progress(SIZE_BYTES, SIZE_BYTES)
    shutil.rmtree(temporary, ignore_errors=True)
    (stage / _marker()).touch()


def _install_with_uv(python: str, requirement: str, stage: Path, poll: Callable[[], None]) -> bool:
    """Try to install with uv, which is much faster. It may fail where pip works: it ignores the settings of pip."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    try:
        _run((uv, "pip", "install", "-q", f"--python={python}", requirement), stage, poll)
    except Unavailable:
        return False
    return True


def _marker() -> str:
    return f".hermes-agent-{VERSION}"


def _run(command: Sequence[str], stage: Path, poll: Callable[[], None]) -> None:
    def wait(process: subprocess.Popen[bytes]) -> None:
        for _ in range(int(INSTALL_S_MAX / _POLL_S)):
            try:
                process.wait(_POLL_S)
                return
            except subprocess.TimeoutExpired:
                poll()
        raise Unavailable("hermes", f"not installed within {INSTALL_S_MAX:g} s; check the network and try again")

    output, temporary = stage.with_suffix(".said"), stage / "tmp"
    try:
        run_installer(command, output, temporary if temporary.is_dir() else None, wait)
    except InstallerFailed as error:
        if "ensurepip" in error.output:
            raise BadConfig(
                f"{sys.executable} can't create virtual environments; install python3-venv and try again"
            ) from error
        raise Unavailable("hermes", f"could not install hermes-agent {error}; try again") from error
    finally:
        output.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder. Files may disappear meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
