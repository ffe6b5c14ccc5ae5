"""Removal of log lines while other processes append to the same files.

A request to forget first adds the session or person to a list, under a lock that every process shares while it appends.
From then on no process appends a line of theirs, not even one that it had in memory. Then the lines in the files are
overwritten in place with spaces. Files only grow at their end, so this needs no lock and loses no line of others. A
file that is rotated meanwhile keeps its content.

A thread that holds the lock may be made to log: by a destructor that a garbage collection runs, or by the `__str__` of
an argument. It would wait for itself for ever, so it checks `is_locking` and leaves such a record to another thread.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

LINE_VERSION = 2
"""Lines without this number may quote anybody: they were written by an earlier version, or cut off."""
LOCK = ".lock"
LIST = ".forgotten"
LISTED_MAX = 10_000
LISTED_S_MAX = 30 * 24 * 3600.0
_CHUNK = 1 << 20
_RETRY_S = 0.001

Forgotten = Callable[[float, Mapping[str, object]], bool]
"""Return true if a record with this time and these fields must not be written."""


class _Thread(threading.local):
    locking = False


_thread = _Thread()
_never = threading.Event()


def is_locking() -> bool:
    """Return whether this thread holds the lock of the log, or is about to take it."""
    return _thread.locking


@contextmanager
def locking() -> Generator[None]:
    """Mark this thread as holding the lock."""
    before, _thread.locking = _thread.locking, True
    try:
        yield
    finally:
        _thread.locking = before


def try_lock(file: int, operation: int, patience_s: float) -> bool:
    """Take a lock with `flock`, within the given time. Call it inside `locking`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            _never.wait(_RETRY_S)
        else:
            return True


class LineFilter(Struct, frozen=True):
    """The log lines to remove: those of some sessions, of a person, and of the session keys of that person.

    `named` are key and owner of a forgotten session: text that has no fields concerns it if it contains one of them.
    """

    sessions: frozenset[str] = frozenset()
    owner: str = ""
    keys: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Return everything by which text without fields may name the session or person."""
        return (self.sessions | self.keys | self.named | {self.owner}) - {""}


class _Line(Struct):
    v: int = 0
    session: str | int | None = None
    owner: str | int | None = None
    key: str | int | None = None


class _Listed(Struct, array_like=True):
    at: float
    digest: str


class ForgottenLines:
    """The list of forgotten sessions and persons, as a process that appends sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = _open_lock(folder)
        self._seen: tuple[int, int] | None = None
        self._listed: dict[str, float] = {}

    @contextmanager
    def appending(self, patience_s: float) -> Generator[Forgotten | None]:
        """Hold the lock that keeps requests to forget away, and yield the check of a record.

        Yields `None` if another thread or process holds the lock for longer: nothing may be appended then. Call it
        inside `locking`.
        """
        if not try_lock(self._lock, fcntl.LOCK_SH, patience_s):
            yield None
            return
        try:
            self._refresh()
            yield self._is_forgotten if self._listed else _none_forgotten
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def reopen(self) -> None:
        """Open the lock again: the folder may have been replaced."""
        lock = _open_lock(self._folder)
        os.close(self._lock)
        self._lock = lock

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)

    def _refresh(self) -> None:
        try:
            stat = os.stat(self._folder / LIST)
        except FileNotFoundError:
            return
        # The list is replaced as a whole, so a new one is another file.
        if self._seen != (seen := (stat.st_ino, stat.st_mtime_ns)):
            self._listed = {each.digest: each.at for each in _read_list(self._folder)}
            self._seen = seen

    def _is_forgotten(self, created: float, fields: Mapping[str, object]) -> bool:
        if (session := fields.get("session")) and _digest("session", str(session)) in self._listed:
            return True
        # A person may come back, and is logged again from then on.
        named = ((kind, fields.get(kind)) for kind in ("owner", "key"))
        return any(created <= self._listed.get(_digest(kind, str(value)), 0.0) for kind, value in named if value)


def list_forgotten(folder: Path, lines: LineFilter) -> None:
    """Make every process drop records of these sessions, and earlier ones of this person."""
    now = time.time()  # noqa: TID251 - records have the time of this clock
    owners = {lines.owner} - {""}
    named = {"session": lines.sessions, "owner": owners, "key": lines.keys}
    added = [_Listed(now, _digest(kind, value)) for kind, values in named.items() for value in values]
    with _exclusive_lock(folder):
        new = {each.digest for each in added}
        kept = [each for each in _read_list(folder) if each.at > now - LISTED_S_MAX and each.digest not in new]
        draft = folder / f"{LIST}.new"
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(msgspec.json.encode([*kept, *added][-LISTED_MAX:]))
        draft.replace(folder / LIST)


@contextmanager
def _exclusive_lock(folder: Path) -> Generator[None]:
    with locking():
        lock = _open_lock(folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def remove_lines(folder: Path, file: int, is_removed: Callable[[bytes], bool]) -> None:
    """Overwrite lines of an open file of the folder in place with spaces."""
    removed, end = 0, 0
    for offset, line in _lines(file, os.fstat(file).st_size):
        end = offset + len(line) + 1
        if line.strip() and is_removed(line):
            os.pwrite(file, b" " * len(line), offset)
            removed += 1
    # What follows the last line end may be a line that is being written, except while nobody appends.
    with _exclusive_lock(folder):
        rest = os.pread(file, os.fstat(file).st_size - end, end)
        unfinished = rest.rpartition(b"\n")[2]
        if unfinished.strip() and is_removed(unfinished):
            os.pwrite(file, b" " * len(unfinished), end + len(rest) - len(unfinished))
            removed += 1
    if removed:
        os.fsync(file)


def is_line_of(
    line: bytes,
    lines: LineFilter,
    *,
    has_words: Callable[[bytes], bool] | None = None,
    may_quote: Callable[[bytes], bool] | None = None,
) -> bool:
    """Return whether a line belongs to a session or person, and contains the words if these are given.

    A line that is no entry of this version may quote anybody. `may_quote` decides about it; without, it belongs to all.
    """
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        entry = None
    if entry is None or entry.v != LINE_VERSION:
        return may_quote is None or may_quote(line)
    theirs = (
        entry.session in lines.sessions or entry.key in lines.keys or (bool(lines.owner) and entry.owner == lines.owner)
    )
    return theirs and (has_words is None or has_words(line))


def _lines(file: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines up to `size` with their offsets, without the line ends."""
    start, rest = 0, b""
    position = 0
    while position < size and (chunk := os.pread(file, min(_CHUNK, size - position), position)):
        position += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield start, line
            start += len(line) + 1


def _read_list(folder: Path) -> list[_Listed]:
    try:
        return msgspec.json.decode((folder / LIST).read_bytes(), type=list[_Listed])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def _open_lock(folder: Path) -> int:
    return os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _digest(kind: str, value: str) -> str:
    return blake2b(f"{kind}:{value}".encode(errors="replace"), digest_size=12).hexdigest()


def _none_forgotten(created: float, fields: Mapping[str, object]) -> bool:
    return False
