"""The sentinel: a small file beside the database that distinguishes a lost database from a new one.

SQLite treats an empty file as a new database. Without the sentinel, the program would start with an empty history after
its database was truncated. The sentinel records the database's id and schema version, a lower bound of its size, the
backups made of it, and the damage found in it. A home without a sentinel gets one when its database is opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from everthread.adapters.sqlite.connection import Connection, open_bare, translate_error
from everthread.domain.errors import StoreCorrupt, StoreError
from everthread.domain.text_format import local_time
from everthread.log_context import Private

log = logging.getLogger("everthread")

SUFFIX = ".sentinel"
LOCK_SUFFIX = ".sentinel.lock"
LOCK_S_MAX = 5.0
"""Longest wait for another process that changes the sentinel. It takes milliseconds, unless the process is stopped."""
_LOCK_POLL_S = 0.01
BACKUPS_MAX = 10
_SIZE_STEP = 1.1
"""The recorded size is a lower bound: it is updated when the file has grown by this factor."""


class KnownBackup(msgspec.Struct, frozen=True):
    """An archive that was verified when it was written."""

    file: str
    bytes: int
    sha256: str
    at: float


class Sentinel(msgspec.Struct, frozen=True):
    database: str
    schema: int
    bytes: int
    backups: tuple[KnownBackup, ...] = ()
    """The newest last."""
    damage: str = ""
    """The error that showed a process that the file is damaged; empty if there was none."""


def sentinel_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def read_sentinel(path: Path) -> Sentinel | None:
    """Return the sentinel of a database; None if there is none, or it can't be read."""
    try:
        return msgspec.json.decode(sentinel_path(path).read_bytes(), type=Sentinel)
    except (OSError, msgspec.MsgspecError):
        return None


def write_sentinel(path: Path, sentinel: Sentinel) -> None:
    """Replace the sentinel atomically. A failure is only logged: the database works without a sentinel."""
    target = sentinel_path(path)
    draft = target.with_name(f"{target.name}.{token_hex(4)}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(sentinel))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        log.warning("could not write %s: %s", target, error)


def update_sentinel(path: Path, change: Callable[[Sentinel], Sentinel]) -> None:
    """Change the sentinel, if there is one, as it is now: another process may have changed it."""
    with _locked(path):
        known = read_sentinel(path)
        if known is not None and (changed := change(known)) != known:
            write_sentinel(path, changed)


def check_not_lost(path: Path, known: Sentinel | None) -> None:
    """Raise `StoreCorrupt` if the database had content before and has none now.

    Call it before anything opens the file: SQLite deletes the write-ahead log of an empty file.
    """
    if known is None or _size(path):
        return
    state = "empty" if path.exists() else "missing"
    raise StoreCorrupt(
        f"{path}: The database is {state}, but it had {known.bytes:,} bytes. {restore_hint(path)} "
        f"To start without its data, remove {sentinel_path(path)}."
    )


def check_and_update_sentinel(connection: Connection, path: Path, known: Sentinel | None) -> None:
    """Compare an opened database with its sentinel, and create or update the sentinel.

    Raises `StoreCorrupt` if another database has taken its place, or if it has become smaller and is damaged.
    """
    found = _describe(connection, path)
    if known is None:
        with _locked(path):
            known = read_sentinel(path)
            if known is None:
                write_sentinel(path, found)
                return
    schema, size, damage = found.schema, found.bytes, known.damage
    if known.database != found.database:
        raise StoreCorrupt(
            f"{path}: This is a different database than before. Put the right file back. {restore_hint(path)} "
            f"To use this database, remove {sentinel_path(path)}."
        )
    if size < known.bytes and (problem := find_damage(connection)):
        raise StoreCorrupt(
            f"{path}: The database was truncated from {known.bytes:,} to {size:,} bytes ({problem}). "
            f"{restore_hint(path)}"
        )
    if known.schema != schema or damage or size < known.bytes:
        # Damage that another process has reported meanwhile stays.
        update_sentinel(
            path,
            lambda now: replace(
                now,
                schema=schema,
                bytes=min(now.bytes, size),
                damage="" if now.damage == damage else now.damage,
            ),
        )


def record_size(path: Path) -> None:
    """Record the size of a database that has grown. Call it after the database was written and closed."""
    known, size = read_sentinel(path), _size(path)
    if known is not None and size > known.bytes * _SIZE_STEP:
        update_sentinel(path, lambda now: replace(now, bytes=max(now.bytes, size)))


def find_damage(connection: Connection) -> str:
    """Check the whole file; return the first problem, or an empty text. Damage of the search index does not count."""
    try:
        return next(without_index_damage(connection.execute("PRAGMA quick_check(2)")), "")
    except apsw.Error as error:
        return str(error)


def without_index_damage(check: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the problems that SQLite's check found outside the search index, which can be rebuilt.

    The check reports at most one problem of the index, so it needs room for one more.
    """
    return (text for (text,) in check if text != "ok" and not _is_of_index(text))


def index_damage_in(check: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the problems that SQLite's check found in the search index."""
    return (text for (text,) in check if _is_of_index(text))


def _is_of_index(problem: str) -> bool:
    return "fts5" in problem.lower()


def record_backup(path: Path, archive: Path, now: float) -> None:
    """Record a verified archive, so that `restore_hint` can name it."""
    if read_sentinel(path) is None:
        return
    backup = KnownBackup(str(archive.resolve()), archive.stat().st_size, _digest(archive), now)

    def add(known: Sentinel) -> Sentinel:
        others = [other for other in known.backups if other.file != backup.file]
        return replace(known, backups=(*others, backup)[-BACKUPS_MAX:])

    update_sentinel(path, add)


def known_backups(path: Path) -> tuple[KnownBackup, ...]:
    """Return the backups made of a database, the newest last."""
    known = read_sentinel(path)
    return known.backups if known is not None else ()


def recreate_sentinel(path: Path, backups: tuple[KnownBackup, ...]) -> None:
    """Create the sentinel of a restored database. `backups` are those of the database that it replaces."""
    with _locked(path):
        sentinel_path(path).unlink(missing_ok=True)
        with open_bare(path) as connection:
            # A database of an older schema gets its id and its sentinel when it is opened.
            if list(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'database_id'")):
                write_sentinel(path, replace(_describe(connection, path), backups=backups))


def newest_backup(path: Path) -> KnownBackup | None:
    """Return the newest backup whose file is unchanged."""
    return next(filter(_is_unchanged, reversed(known_backups(path))), None)


def restore_hint(path: Path) -> str:
    """Say how to restore the newest good backup."""
    backup = newest_backup(path)
    if backup is None:
        return "No known backup is intact. If you have another one: everthread restore FILE --force."
    return f"Restore the newest good backup, of {local_time(backup.at)}: everthread restore {backup.file} --force."


class DamageGuard:
    """Stops writing to a damaged database, and reports the damage once."""

    def __init__(self, path: Path, problem: str = "", *, on_index_damage: Callable[[], None] = lambda: None) -> None:
        """`on_index_damage` is called when a rebuild of the search index becomes due, on any thread."""
        self._path = path
        self._on_index_damage = on_index_damage
        self._lock = threading.Lock()
        self.problem = problem
        """Message that explains why nothing is written; empty while the database is undamaged."""
        self.is_rebuild_due = False
        """The search index is damaged, and this process has neither emptied it nor given up. Set once in a process."""
        self._index_reported = False

    def translate(self, error: apsw.Error) -> StoreError:
        """Translate an error of SQLite. The first one that reports damage stops all writes.

        Damage of the search index stops none: the index is derived from the messages.
        """
        match error:
            case apsw.CorruptError(extendedresult=apsw.SQLITE_CORRUPT_VTAB):
                return self.report_index_damage()
            case _:
                translated = translate_error(error, str(self._path))
                return self._report(translated) if isinstance(translated, StoreCorrupt) else translated

    def check(self) -> None:
        """Raise `StoreCorrupt` if damage was found."""
        if self.problem:
            raise StoreCorrupt(self.problem)

    def report_index_damage(self) -> StoreError:
        """Report damage of the search index, once, and have the index rebuilt."""
        with self._lock:
            is_new, self._index_reported = not self._index_reported, True
            self.is_rebuild_due = self.is_rebuild_due or is_new
        if is_new:
            log.error("%s: The search index is damaged and will be rebuilt. No message is lost.", self._path)
            self._on_index_damage()
        return StoreError(f"{self._path}: The search index is damaged and will be rebuilt. Try again.")

    def _report(self, error: StoreCorrupt) -> StoreCorrupt:
        with self._lock:
            if not self.problem:
                self.problem = damage_text(self._path, error)
                log.critical("%s: The file is damaged: %s", self._path, Private(self.problem, "StoreCorrupt"))
                update_sentinel(self._path, lambda known: replace(known, damage=str(error)))
        return StoreCorrupt(self.problem)


def damage_text(path: Path, error: Exception | str) -> str:
    """Describe damage that stops all writes, and how to restore."""
    found = str(error).removeprefix(f"{path}: ").removesuffix(" Restore a backup.").rstrip(".")
    return f"{path}: {found}. Nothing more is written. {restore_hint(path)}"


@contextmanager
def with_restore_hint(path: Path) -> Generator[None]:
    """Translate SQLite's errors; one that reports damage names the newest good backup."""
    try:
        yield
    except apsw.Error as error:
        translated = translate_error(error, str(path))
        if isinstance(translated, StoreCorrupt):
            text = str(translated).removesuffix("Restore a backup.")
            raise StoreCorrupt(f"{text}{restore_hint(path)}") from error
        raise translated from error


def _describe(connection: Connection, path: Path) -> Sentinel:
    """Return the sentinel of an opened database without its history."""
    ((database,),) = connection.execute("SELECT id FROM database_id")
    ((schema,),) = connection.execute("SELECT MAX(number) FROM migrations")
    return Sentinel(database, schema, _size(path))


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Keep other processes and threads from changing the sentinel. Not reentrant.

    Without the lock, because a holder is stopped or the folder can't be written, the change is tried all the same.
    """
    lock = path.with_name(path.name + LOCK_SUFFIX)
    with ExitStack() as held:
        try:
            opened = held.enter_context(open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb"))
            _lock(opened.fileno())
        except OSError as error:
            log.warning("could not lock %s: %s", lock, error.strerror or "another process holds it")
        yield


def _lock(opened: int) -> None:
    """Acquire the lock. Raises `TimeoutError` if another process holds it for too long."""
    deadline = time.monotonic() + LOCK_S_MAX
    while True:
        try:
            return fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
        time.sleep(_LOCK_POLL_S)


def _is_unchanged(backup: KnownBackup) -> bool:
    archive = Path(backup.file)
    try:
        return archive.stat().st_size == backup.bytes and _digest(archive) == backup.sha256
    except OSError:
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
