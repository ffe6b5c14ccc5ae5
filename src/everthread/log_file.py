"""Log file of a home folder: one JSON object per line, without secrets. `everthread logs` reads it.

Several processes append to one file, with one write per line. A background thread writes INFO records after a short
delay, so that no turn waits for the disk. Records from WARNING are written synchronously. Errors of the log file never
reach the caller.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from everthread.config.checks import SECRET_VALUE, is_secret_name
from everthread.config.schema import Settings

BYTES_MAX = 5_000_000
ROTATED_MAX = 3
"""The number of rotated files: everthread.log.1 and so on."""
TEXT_CHARS_MAX = 4_000
TRACE_CHARS_MAX = 12_000
HIDDEN = "[hidden]"
LATER_S = 0.3
_CHECK_BYTES = 65_536
_WAITING_MAX = 256
_SECRET_CHARS_MIN = 6
_FIELDS = ("session", "turn", "turn_id", "boundary", "status", "platform", "key")
_BEARER = r"(?<=Bearer )[\w.~+/=-]{8,}"


def log_path(home: Path) -> Path:
    """Return the path of the log file of a home folder."""
    return home / "logs" / "everthread.log"


def log_to_file(settings: Settings) -> LogFile | None:
    """Write log records from INFO to the log file. Returns None if the file can't be written."""
    try:
        # `mkdir(parents=True)` of the log folder would create this one with the default mode.
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = LogFile(log_path(settings.home), hidden=secrets_of(settings))
    except OSError:
        return None
    logger = logging.getLogger("everthread")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # The log file has none of these fields, and records are cheaper without them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    return handler


def secrets_of(settings: Settings) -> frozenset[str]:
    """Return the values to hide: all values of `.env`, and environment variables with the name of a secret."""
    variables = settings.variables
    keys = {provider.api_key_env for provider in settings.providers.values()}
    named = {value for name, value in variables.environ.items() if name in keys or is_secret_name(name)}
    return frozenset(value for value in {*named, *variables.file.values()} if len(value) >= _SECRET_CHARS_MIN)


class LogFile(logging.Handler):
    """Logging handler that appends JSON lines, hides secrets and rotates the file."""

    def __init__(self, path: Path, *, hidden: Iterable[str] = (), bytes_max: int = BYTES_MAX) -> None:
        super().__init__(logging.INFO)
        self._path = path
        self._bytes_max = bytes_max
        self._pid = os.getpid()
        # The longest first, because one secret may be a prefix of another.
        known = [re.escape(value) for value in sorted(hidden, key=len, reverse=True)]
        self._secret = re.compile("|".join([*known, SECRET_VALUE, _BEARER]))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = self._open()
        self._unchecked_bytes = _CHECK_BYTES
        self._waiting: list[logging.LogRecord] = []
        self._woken = threading.Event()
        self._closed = False
        threading.Thread(target=self._write_later, name="log-file", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self._waiting.append(record)
        if record.levelno >= logging.WARNING or len(self._waiting) >= _WAITING_MAX:
            self._write()
        elif len(self._waiting) == 1:
            self._woken.set()

    def flush(self) -> None:
        with self._locked():
            self._write()

    def _write_later(self) -> None:
        pause = threading.Event()
        while not self._closed:
            self._woken.wait()
            # Collect the records of this interval into one flush.
            pause.wait(LATER_S)
            self._woken.clear()
            self.flush()

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _write(self) -> None:
        if self._closed:
            return
        records, self._waiting = self._waiting, []
        for record in records:
            # An error of the log file must not affect the code that logs.
            with suppress(OSError, ValueError, TypeError, KeyError):
                line = msgspec.json.encode(self._entry(record)) + b"\n"
                os.write(self._file, line)
                self._unchecked_bytes += len(line)
                if self._unchecked_bytes >= min(_CHECK_BYTES, self._bytes_max):
                    self._unchecked_bytes = 0
                    self._rotate()

    def leave(self) -> None:
        """Remove the handler from the logger, and close it."""
        logging.getLogger("everthread").removeHandler(self)
        self.close()

    def close(self) -> None:
        # The thread is not joined: it may be waiting for this lock, and ends once `_closed` is set.
        with self._locked():
            if not self._closed:
                self._write()
                self._closed = True
                self._woken.set()
                with suppress(OSError):
                    os.close(self._file)
        super().close()

    def _entry(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": self._clean(record.getMessage(), TEXT_CHARS_MAX),
            "pid": self._pid,
        }
        more: Mapping[str, object] = record.__dict__
        for name in _FIELDS:
            value = more.get(name)
            if value is not None:
                entry[name] = value
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            entry["error"] = self._clean(trace[-TRACE_CHARS_MAX:], TRACE_CHARS_MAX)
        return entry

    def _clean(self, text: str, chars_max: int) -> str:
        # Hide secrets before the cut, because a part of a secret would not match.
        cleaned = self._secret.sub(HIDDEN, text[: 4 * chars_max])[:chars_max]
        return cleaned if cleaned.isascii() else cleaned.encode(errors="replace").decode()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        """Rotate the file if it is full, or reopen it if another process has rotated it."""
        if os.fstat(self._file).st_size < self._bytes_max and self._is_current():
            return
        lock = os.open(self._path.parent / ".lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_current():
                for number in range(ROTATED_MAX, 0, -1):
                    older = self._rotated_path(number - 1)
                    if older.exists():
                        older.replace(self._rotated_path(number))
            full, self._file = self._file, self._open()
            os.close(full)
        finally:
            os.close(lock)

    def _is_current(self) -> bool:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(stat, os.fstat(self._file))

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
