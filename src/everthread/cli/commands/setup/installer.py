"""Run an installer (venv, pip, uv) for a folder in the home: one at a time, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from everthread.config.environment import child_environment
from everthread.domain.errors import DiskFull, StoreBusy, StoreUnwritable

Progress = Callable[[int, int], None]
"""Called with the bytes installed so far, and their total."""


OTHER_FILE = "nothing was installed. Check which package index pip and uv use on this machine, or update Everthread"
"""Remedy for a file whose digest is not in the lock."""


def is_hash_mismatch(output: str) -> bool:
    """Tell if pip or uv refused a file because of its digest."""
    return "do not match the hashes" in output or "hash mismatch" in output


class InstallerFailed(Exception):
    """The exit code and the output of an installer that failed."""

    def __init__(self, code: int, output: str) -> None:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if "error" in line.casefold()), lines[-1] if lines else "")
        super().__init__(f"(exit code {code}): {last[:300]}")
        self.output = output.casefold()


@contextlib.contextmanager
def exclusive_install(folder: Path, what: str) -> Generator[None]:
    """Lock the installation of a folder. The lock ends with the process.

    Raises `StoreBusy` if another process holds it, `DiskFull` or `StoreUnwritable` if files can't be written.
    """
    try:
        lock = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StoreBusy(f"another process is installing {what}; wait until it ends") from None
        finally:
            os.close(lock)
    except OSError as error:
        raise write_error(folder, error) from error


def write_error(folder: Path, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{folder}: {error.strerror}; free some space and try again")
    return StoreUnwritable(f"{folder}: {error.strerror or error}; choose another home with --home")


def install_folder(folder: Path, what: str, is_installed: Callable[[Path], bool], fill: Callable[[Path], None]) -> bool:
    """Create a folder completely or not at all; return whether it was created.

    `fill` writes the files to `files` in the folder it gets, which also has a folder `tmp`. Raises the errors of
    `exclusive_install`.
    """
    try:
        if is_installed(folder):
            return False
        for parent in (folder.parent.parent, folder.parent):
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise write_error(folder, error) from error
    with exclusive_install(folder, what):
        if is_installed(folder):  # by a process that ended just now
            return False
        stage = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(stage, ignore_errors=True)
        try:
            (stage / "tmp").mkdir(parents=True)
            fill(stage)
            if folder.exists():
                folder.rename(stage / "old")
            (stage / "files").rename(folder)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return True


def run_installer(command: Sequence[str], stage: Path, poll_s: float, poll: Callable[[], None]) -> None:
    """Run a command for `install_folder`. Call `poll` every `poll_s` seconds; if it raises, the command is killed.

    Temporary files go to the disk of the home: /tmp may be small. Raises `DiskFull` or `InstallerFailed`.
    """
    with (stage / "output").open("w+b") as file:
        environment = child_environment(PYTHONUNBUFFERED="1", TMPDIR=str(stage / "tmp"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
        try:
            while process.poll() is None:
                try:
                    process.wait(poll_s)
                except subprocess.TimeoutExpired:
                    poll()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        file.seek(0)
        if process.returncode != 0:
            failed = InstallerFailed(process.returncode, file.read().decode(errors="replace"))
            if "no space left" in failed.output or "disk quota exceeded" in failed.output:
                raise DiskFull("no space left on the device; free some space and try again")
            raise failed


def file_sizes(folder: Path, pattern: str = "*") -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of the files in a folder. Unlike a glob, a walk tolerates files that disappear."""
    for path, _, names in os.walk(folder):
        for name in fnmatch.filter(names, pattern):
            with contextlib.suppress(OSError):
                yield name, os.lstat(os.path.join(path, name)).st_size
