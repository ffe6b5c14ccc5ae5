"""Paths from the command line, and private files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

STALE_S_MIN = 3600.0


def parse_path(text: str) -> Path:
    """Return a path from the command line, with `~` expanded. Raises `BadInput` if it is invalid."""
    from everthread.domain.errors import BadInput

    if not text or "\0" in text:
        raise BadInput(f"invalid file name {text!r}; give a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.split("/")[0]
        raise BadInput(f"{text}: no user {user[1:]!r} on this machine; write the full path, or ./{user}") from None


@contextlib.contextmanager
def new_file(name: str | Path) -> Generator[BinaryIO]:
    """Open a new private file for writing. It gets its name once it is complete and on disk; a failure leaves nothing.

    Raises `AlreadyExists` if the name exists, `StoreUnwritable` or `DiskFull` if it can't be written.
    """
    from everthread.domain.errors import AlreadyExists

    path = parse_path(name) if isinstance(name, str) else name
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        if path.exists() or path.is_symlink():
            raise FileExistsError
        try:
            with open(draft, "xb", opener=_private) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _name(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise AlreadyExists(f"{path}: already exists; choose another name, or move it") from None
    except OSError as error:
        raise translate_os_error(path, error) from error


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _name(draft: Path, path: Path) -> None:
    """Name the file with a link: unlike a rename, it never replaces a new file. Some file systems have no links."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        draft.rename(path)


@contextlib.contextmanager
def temporary_folder(home: Path, name: str, now: float) -> Generator[Path]:
    """Create a private temporary folder in the home, removed at the end, also on SIGTERM.

    Folders left by killed processes are removed first.
    """
    import tempfile

    remove_stale(home, rf"\.{name}-([0-9]+)-.*", now)
    with _sigterm_as_sigint(), tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-{os.getpid()}-") as folder:
        yield Path(folder)


def remove_stale(folder: Path, pattern: str, now: float) -> None:
    """Remove files left by dead processes: names that match the pattern, whose first group is the process id."""
    import re
    import shutil

    for path in folder.iterdir():
        match = re.fullmatch(pattern, path.name)
        with contextlib.suppress(OSError):
            # Keep recent files: the home may be shared with another machine, whose processes are not visible here.
            if match and not _is_running(int(match[1])) and now - path.lstat().st_mtime > STALE_S_MIN:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # It exists, but belongs to another user.
        pass
    return True


@contextlib.contextmanager
def _sigterm_as_sigint() -> Generator[None]:
    """Treat SIGTERM like Ctrl-C, so that cleanup runs."""
    import signal

    def interrupt(*_: object) -> None:
        # The event loop may have its own SIGINT handler; a background process may have none.
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that new names in it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def translate_os_error(path: Path, error: OSError) -> Exception:
    """Translate an OSError of a file into an error of ours."""
    from everthread.domain.errors import DiskFull, StoreUnwritable

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: no space left on the device; free some space and try again")
    return StoreUnwritable(f"{path}: {error.strerror or error}; fix its permissions, or choose another path")
