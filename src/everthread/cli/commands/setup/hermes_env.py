"""Making an environment with Hermes Agent, for its memory plugins: a virtual environment in the home, and nowhere else.

Whatever happens, the folder is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from everthread.config.environment import child_environment
from everthread.domain.errors import BadConfig, DiskFull, StoreBusy, StoreUnwritable, Unavailable

VERSION = "0.19.0"
"""The one that the bridge was tried with."""
WHOLE = 220_000_000
"""About what it takes on disk, for a bar to have an end."""
INSTALL_S_MAX = 1800.0
_LOOK_S = 1.0

Progress = Callable[[int, int], None]
"""How many bytes are there, of how many."""


def is_made(folder: Path) -> bool:
    return (folder / "bin" / "python").exists() and (folder / _mark()).exists()


def make(folder: Path, progress: Progress, wanted: str = f"hermes-agent=={VERSION}") -> bool:
    """See to it that the environment is there; whether anything had to be done for it."""
    if is_made(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(folder.with_name(f".{folder.name}.lock")):
            if is_made(folder):  # by the one that was waited for
                return False
            stage = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(stage, ignore_errors=True)
            try:
                _fill(stage, progress, wanted)
                shutil.rmtree(folder, ignore_errors=True)
                stage.rename(folder)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{folder}: {error.strerror}; free some space and run this again") from error
        raise StoreUnwritable(f"{folder}: {error.strerror or error}; choose another home with --home") from error
    return True


def _fill(stage: Path, progress: Progress, wanted: str) -> None:
    _run((sys.executable, "-m", "venv", str(stage)), stage, lambda: None)
    python, temporary = str(stage / "bin" / "python"), stage / "tmp"
    temporary.mkdir()

    def look() -> None:
        progress(min(_size(stage), WHOLE), WHOLE)

    if not _quickly(python, wanted, stage, look):
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
        _run((*pip, "install", "--progress-bar=off", wanted), stage, look)
    progress(WHOLE, WHOLE)
    shutil.rmtree(temporary, ignore_errors=True)
    (stage / _mark()).touch()


def _quickly(python: str, wanted: str, stage: Path, look: Callable[[], None]) -> bool:
    """With uv, if it is there: several times faster. It does not read pip's settings (mirrors, certificates)."""
    uv = shutil.which("uv")
    if uv is None:
        return False
    try:
        _run((uv, "pip", "install", "-q", f"--python={python}", wanted), stage, look)
    except Unavailable:
        return False
    return True


def _mark() -> str:
    return f".hermes-agent-{VERSION}"


@contextlib.contextmanager
def _alone(path: Path) -> Generator[None]:
    """Keep a second installation away. The lock ends with the process, however it ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreBusy("another process is setting up Hermes Agent; wait for it to end") from None
    finally:
        os.close(lock)


def _run(command: Sequence[str], stage: Path, look: Callable[[], None]) -> None:
    said = stage.with_suffix(".said")
    try:
        with said.open("w+b") as out:
            # Temporary files belong on the disk of the home, and show how far a download has come.
            temporary = stage / "tmp"
            places = {"TMPDIR": str(temporary)} if temporary.is_dir() else {}
            environment = child_environment(PYTHONUNBUFFERED="1", **places)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
            try:
                _wait(process, look)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            out.seek(0)
            if process.returncode != 0:
                raise _reason(out.read().decode(errors="replace"), process.returncode)
    finally:
        said.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], look: Callable[[], None]) -> None:
    for _ in range(int(INSTALL_S_MAX / _LOOK_S)):
        try:
            process.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            look()
    raise Unavailable("hermes", f"not installed within {INSTALL_S_MAX:g} s; see that the network is up, and try again")


def _size(folder: Path) -> int:
    """The bytes of the files in there; some may go while they are counted."""
    whole = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                whole += os.lstat(os.path.join(place, name)).st_size
    return whole


def _reason(said: str, code: int) -> Exception:
    told = said.casefold()
    if "no space left" in told or "disk quota exceeded" in told:
        return DiskFull("the disk is full; free some space and run this again")
    if "ensurepip" in told:
        return BadConfig(
            f"{sys.executable} can't make virtual environments; install them (python3-venv), and try again"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "error" in line.casefold()), lines[-1] if lines else "")
    return Unavailable(
        "hermes", f"hermes-agent could not be installed (exit code {code}): {last.strip()[:300]}; run this again"
    )
