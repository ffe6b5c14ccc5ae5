"""Files that people name, and those that hold conversations: for the owner's eyes only, there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

LEFT_S_MIN = 3600.0


def path_given(text: str) -> Path:
    """The path that somebody has typed; `~` is their home. Raises `BadInput` if it can't be one."""
    from everthread.domain.errors import BadInput

    if not text or "\0" in text:
        raise BadInput(f"{text!r} is no name of a file; give one")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.split("/")[0]
        raise BadInput(f"{text}: {user} is nobody's home here; write the path out, or ./{user} for that name") from None


@contextlib.contextmanager
def written_whole(name: str | Path) -> Generator[BinaryIO]:
    """A new file to write to. It has its name once everything is on the disk; nothing is left of it if that fails.

    Raises `AlreadyThere` if something has that name, `StoreUnwritable` or `DiskFull` if it can't be kept.
    """
    from everthread.domain.errors import AlreadyThere

    path = path_given(name) if isinstance(name, str) else name
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
        raise AlreadyThere(f"{path}: is there already; choose another name, or move it away") from None
    except OSError as error:
        raise unwritable(path, error) from error


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _name(draft: Path, path: Path) -> None:
    """A link fails where a renaming would take the place of what came meanwhile; some disks have no links."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        draft.rename(path)


@contextlib.contextmanager
def workplace(home: Path, name: str, now: float) -> Generator[Path]:
    """A folder in the home, where nobody else reads, that is gone in the end, also if the process is told to end.

    What a process that was killed has left of the kind is removed first.
    """
    import tempfile

    sweep(home, rf"\.{name}-([0-9]+)-.*", now)
    with _ended_like_ctrl_c(), tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-{os.getpid()}-") as folder:
        yield Path(folder)


def sweep(folder: Path, pattern: str, now: float) -> None:
    """Remove what processes that are gone have left: names that fit, and have the number of the process in them."""
    import re
    import shutil

    for path in folder.iterdir():
        match = re.fullmatch(pattern, path.name)
        with contextlib.suppress(OSError):
            # Not what is young: the home may be shared with a machine that has other processes.
            if match and not _is_running(int(match[1])) and now - path.lstat().st_mtime > LEFT_S_MIN:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        # It is somebody else's, so it is there.
        return True
    return True


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Generator[None]:
    """Whoever is told to end may still tidy up."""
    import signal

    def interrupt(*_: object) -> None:
        # What Ctrl-C does may have been arranged by the event loop; in the background nothing may be.
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(path: Path, error: OSError) -> Exception:
    """What the system said of a file, in our words."""
    from everthread.domain.errors import DiskFull, StoreUnwritable

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: no room left on the disk; free some space and try again")
    return StoreUnwritable(f"{path}: {error.strerror or error}; choose another place or mend its permissions")
