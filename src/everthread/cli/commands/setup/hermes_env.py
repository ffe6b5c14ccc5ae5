"""Install Hermes Agent, for its memory plugins, into a virtual environment in the home.

The folder is complete or does not exist.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everthread.cli.commands.setup.installer import (
    OTHER_FILE,
    InstallerFailed,
    Progress,
    file_sizes,
    install_folder,
    is_hash_mismatch,
    run_installer,
)
from everthread.domain.errors import BadConfig, Unavailable

VERSION = "0.19.0"
"""The version that the bridge is tested with."""
REQUIREMENT = f"hermes-agent=={VERSION}"
LOCK = Path(__file__).with_name("hermes.lock")
"""Exact versions and SHA-256 digests of the program and of everything that it needs. Written by `make lock`."""
SIZE_BYTES = 220_000_000
"""Approximate size on disk, for the progress bar."""
INSTALL_S_MAX = 1800.0
_POLL_S = 1.0


def is_installed(folder: Path) -> bool:
    return (folder / "bin" / "python").exists() and (folder / _marker()).exists()


def install(folder: Path, progress: Progress, lock: Path = LOCK) -> bool:
    """Create the environment if it does not exist; return whether it was created."""
    return install_folder(folder, "Hermes Agent", is_installed, lambda stage: _fill(stage, progress, lock))


def _fill(stage: Path, progress: Progress, lock: Path) -> None:
    files = stage / "files"
    deadline = time.monotonic() + INSTALL_S_MAX

    def poll() -> None:
        if time.monotonic() > deadline:
            raise Unavailable("hermes", f"not installed within {INSTALL_S_MAX:g} s; check the network and try again")
        progress(min(sum(size for _, size in file_sizes(files)), SIZE_BYTES), SIZE_BYTES)

    _run((sys.executable, "-P", "-m", "venv", str(files)), stage, poll)
    python = str(files / "bin" / "python")
    if not _install_with_uv(python, lock, stage, poll):
        pip = (python, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
        _run((*pip, "install", "--progress-bar=off", *_hashed(lock)), stage, poll)
    progress(SIZE_BYTES, SIZE_BYTES)
    (files / _marker()).touch()


def _install_with_uv(python: str, lock: Path, stage: Path, poll: Callable[[], None]) -> bool:
    """Try to install with uv, which is much faster. It may fail where pip works: it ignores the settings of pip."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    try:
        _run((uv, "pip", "install", "-q", f"--python={python}", *_hashed(lock)), stage, poll)
    except Unavailable:
        return False
    return True


def _hashed(lock: Path) -> tuple[str, ...]:
    """Return the options for a lock. Only wheels: building another file would fetch packages that no lock has."""
    return ("--require-hashes", "--only-binary=:all:", f"--requirement={lock}")


def _marker() -> str:
    return f".hermes-agent-{VERSION}"


def _run(command: Sequence[str], stage: Path, poll: Callable[[], None]) -> None:
    try:
        run_installer(command, stage, _POLL_S, poll)
    except InstallerFailed as error:
        if "ensurepip" in error.output:
            raise BadConfig(
                f"{sys.executable} can't create virtual environments; install python3-venv and try again"
            ) from error
        if is_hash_mismatch(error.output):
            raise Unavailable(
                "hermes", f"the package index sent a file with another SHA-256 than in {LOCK.name}; {OTHER_FILE}"
            ) from error
        raise Unavailable("hermes", f"could not install hermes-agent {error}; try again") from error
