"""Run an installer (venv, pip, uv) for a folder in the home: one at a time, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from everthread.config.environment import child_environment
from everthread.domain.errors import DiskFull, StoreBusy, StoreUnwritable

Progress = Callable[[int, int], None]
"""Called with the bytes installed so far, and their total."""


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


def run_installer(
    command: Sequence[str], output: Path, temporary: Path | None, wait: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """Run a command, with its output in a file; `wait` returns when it has ended, or raises to kill it.

    Temporary files go to the disk of the home: /tmp may be small. Raises `DiskFull` or `InstallerFailed`.
    """
    with output.open("w+b") as file:
        folders = {"TMPDIR": str(temporary)} if temporary is not None else {}
        environment = child_environment(PYTHONUNBUFFERED="1", **folders)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
        try:
            wait(process)
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
