"""Copy a SQLite file that may be in use, without changing any file beside it.

Opening the file, even read-only, would create or change its `-wal` and `-shm`. So the bytes are copied: first the
file, then its `-wal`. Pages that a checkpoint moves into the file meanwhile are still in the `-wal`, unless the `-wal`
was restarted. In that case the copy is repeated.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from everthread.domain.errors import BadInput, DiskFull, StoreBusy

TRIES_MAX = 20
_PAUSE_S = 0.25
_WAL_HEAD = 32
_AT_ONCE = 1 << 20

_Mark = tuple[object, ...]


@contextmanager
def copy_snapshot(path: Path, advance: Callable[[int], None] = lambda _: None) -> Generator[Path]:
    """Yield a copy in a private temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="everthread-import-") as folder:
        copy = Path(folder) / "copy.db"
        _check_space(path, copy.parent)
        for _ in range(TRIES_MAX):
            if _copy_once(path, copy, advance):
                break
            time.sleep(_PAUSE_S)
        else:
            raise StoreBusy(f"{path}: changes all the time; stop Hermes and try again")
        yield copy


def _copy_once(path: Path, copy: Path, advance: Callable[[int], None]) -> bool:
    """Copy the files once. Return true if the copy is consistent."""
    before = _mark(path)
    for suffix in ("", "-wal", "-journal"):
        target = Path(f"{copy}{suffix}")
        try:
            _copy(Path(f"{path}{suffix}"), target, advance if not suffix else lambda _: None)
        except FileNotFoundError:
            if not suffix:
                raise
            target.unlink(missing_ok=True)
    return _mark(path) == before


def _mark(path: Path) -> _Mark:
    """Return a value that changes if a copy made meanwhile is inconsistent."""
    head = _wal_head(Path(f"{path}-wal"))
    if head:
        # The salt changes when the `-wal` is restarted; until then, the copy misses nothing.
        return ("wal", head)
    return ("alone", _stamp(path), _stamp(Path(f"{path}-journal")))


def _wal_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_WAL_HEAD)
    except FileNotFoundError:
        return b""


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _copy(source: Path, target: Path, advance: Callable[[int], None]) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        while some := reading.read(_AT_ONCE):
            writing.write(some)
            advance(len(some))


def _check_space(path: Path, folder: Path) -> None:
    if not path.is_file():
        raise BadInput(f"{path}: not a file; give the folder of a Hermes home")
    try:
        wanted = path.stat().st_size
        wanted += Path(f"{path}-wal").stat().st_size if Path(f"{path}-wal").exists() else 0
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; check its permissions") from None
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise DiskFull(
            f"{folder.parent}: a copy of {path.name} needs {wanted / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free; "
            "free some space, or set TMPDIR to a place with more"
        )
