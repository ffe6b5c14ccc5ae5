"""Log file of a home folder: one JSON object per line, without secrets and without words of a person.

`log_format` decides what is written, `log_erasure` removes lines of what is forgotten. Several processes append to one
file, whole lines with one write. A background thread writes INFO records after a short delay, so that no turn waits for
the disk. Records from WARNING are written synchronously, except while another thread or process has locked the files.
Errors of the log file never reach the caller.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from everthread.config.checks import SECRET_VALUE, is_secret_name
from everthread.config.schema import Settings
from everthread.log_context import current_log_scope
from everthread.log_erasure import LINE_VERSION, LOCK, Forgotten, ForgottenLines, is_locking, locking, try_lock
from everthread.log_format import OWN_LOGGER, FormattedRecord, format_record, is_own, logger_name

BYTES_MAX = 5_000_000
ROTATED_MAX = 3
"""The number of rotated files: everthread.log.1 and so on."""
TEXT_CHARS_MAX = 4_000
TRACE_CHARS_MAX = 12_000
HIDDEN = "[hidden]"
LATER_S = 0.3
_CHECK_BYTES = 65_536
_WAITING_MAX = 256
_KEPT_MAX = 10_000
"""Records that wait while the files are locked; of more, the newest are kept."""
_PATIENCE_S = 0.02
"""Time that code which logs waits for the lock, once: later records only wait in memory."""
_LAST_PATIENCE_S = 2.0
_SECRET_CHARS_MIN = 6
DETAILS_MAX = 200
"""Full texts that wait for the store; of more, the newest are kept."""
_DETAIL_CHARS_MAX = 4_000
_FIELDS = ("session", "owner", "turn", "turn_id", "boundary", "status", "platform", "key", "schedule")
_FIELD_CHARS_MAX = 200
"""Characters of a field that another library has set."""
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
    # Of all loggers: other libraries would write messages that quote anybody to stderr.
    logging.getLogger().addHandler(handler)
    logging.getLogger(OWN_LOGGER).setLevel(logging.INFO)
    # The log file has none of these fields, and records are cheaper without them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    threading.excepthook = _log_thread_error
    sys.unraisablehook = _log_unraisable
    return handler


def _log_thread_error(args: threading.ExceptHookArgs, /) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        logging.getLogger(OWN_LOGGER).error("a thread failed", exc_info=args.exc_value)


def _log_unraisable(args: sys.UnraisableHookArgs, /) -> None:
    if args.exc_value is not None:
        logging.getLogger(OWN_LOGGER).error("an error was ignored", exc_info=args.exc_value)


def secrets_of(settings: Settings) -> frozenset[str]:
    """Return the values to hide: all values of `.env`, and environment variables with the name of a secret."""
    variables = settings.variables
    keys = {provider.api_key_env for provider in settings.providers.values()}
    named = {value for name, value in variables.environ.items() if name in keys or is_secret_name(name)}
    return frozenset(value for value in {*named, *variables.file.values()} if len(value) >= _SECRET_CHARS_MIN)


class LogDetail(msgspec.Struct, frozen=True):
    """The full text of a record, which may quote a person. The log file has only its reference."""

    at: float
    reference: str
    logger: str
    text: str
    session_id: str = ""
    owner: str = ""
    key: str = ""


class LogFile(logging.Handler):
    """Logging handler that appends JSON lines, hides secrets and rotates the file."""

    def __init__(self, path: Path, *, hidden: Iterable[str] = (), bytes_max: int = BYTES_MAX) -> None:
        super().__init__(logging.INFO)
        self._path = path
        self._bytes_max = bytes_max
        self._pid = os.getpid()
        self._second, self._second_text = -1, ""
        # The longest first, because one secret may be a prefix of another.
        known = [re.escape(value) for value in sorted(hidden, key=len, reverse=True)]
        self._secret = re.compile("|".join([*known, SECRET_VALUE, _BEARER]))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = self._open()
        self._unchecked_bytes = _CHECK_BYTES
        # Without locks written in Python, because a destructor may log in the middle of any of these functions.
        self._waiting: deque[logging.LogRecord] = deque(maxlen=_KEPT_MAX)
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._is_locked_out = False
        self._forgotten = ForgottenLines(path.parent)
        self.details: deque[LogDetail] | None = None
        """Set by the code that moves them to the store; without it, full texts are dropped."""
        self.on_detail: Callable[[], None] = _nothing
        self._closed = False
        threading.Thread(target=self._write_later, name="log-file", daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        # The thread that holds the lock of the files must not wait for a thread that waits for this lock.
        if not is_locking():
            return bool(super().handle(record))
        self._add(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        if not self._add(record):
            return
        if record.levelno >= logging.WARNING or len(self._waiting) >= _WAITING_MAX:
            self._write(_PATIENCE_S)

    def flush(self) -> None:
        with self._locked():
            self._write(_PATIENCE_S, is_retry=True)

    def _add(self, record: logging.LogRecord) -> bool:
        """Add a record to those that wait. Return false if it is not logged."""
        if record.levelno < logging.WARNING and not record.name.startswith(OWN_LOGGER):
            return False
        for name, value in current_log_scope().items():
            record.__dict__.setdefault(name, value)
        self._waiting.append(record)
        self._wake()
        return True

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    def _write_later(self) -> None:
        pause = threading.Event()
        while not self._closed:
            self._woken.get()
            # Collect the records of this interval into one flush.
            pause.wait(LATER_S)
            while not self._woken.empty():
                self._woken.get()
            self.flush()

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _write(self, patience_s: float, *, is_retry: bool = False) -> None:
        if self._closed or not self._waiting or is_locking() or (self._is_locked_out and not is_retry):
            return
        with locking():
            # An error of the log file must not affect the code that logs.
            with suppress(OSError), self._forgotten.appending(patience_s) as forgotten:
                self._is_locked_out = forgotten is None
                if forgotten is None:
                    self._wake()
                    return
                records = [self._waiting.popleft() for _ in range(len(self._waiting))]
                lines = b"".join(self._line(record, forgotten) for record in records)
                os.write(self._file, lines)
                self._unchecked_bytes += len(lines)
            if self._unchecked_bytes >= min(_CHECK_BYTES, self._bytes_max):
                self._unchecked_bytes = 0
                with suppress(OSError):
                    self._rotate()

    def _line(self, record: logging.LogRecord, forgotten: Forgotten) -> bytes:
        # `Exception`: the error of another program is formatted here, and its `__str__` may do anything.
        with suppress(Exception):
            fields = self._fields(record)
            if forgotten(record.created, fields):
                return b""
            formatted = format_record(record)
            line = msgspec.json.encode(self._entry(record, formatted, fields)) + b"\n"
            if formatted.private_text and self.details is not None:
                self.details.append(self._detail(record, formatted, fields))
                self.on_detail()
            return line
        return self._minimal_line(record)

    def _minimal_line(self, record: logging.LogRecord) -> bytes:
        """Return a line for a record that can't be formatted, without anything that it was given."""
        with suppress(Exception):
            entry = self._first_fields(record) | {"text": "a record that can't be formatted", "pid": self._pid}
            return msgspec.json.encode(entry) + b"\n"
        return b""

    def leave(self) -> None:
        """Remove the handler from the logger, and close it."""
        logging.getLogger().removeHandler(self)
        threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__
        self.close()

    def close(self) -> None:
        # The thread is not joined: it may be waiting for this lock, and ends once `_closed` is set.
        with self._locked():
            if not self._closed:
                self._write(_LAST_PATIENCE_S, is_retry=True)
                self._closed = True
                self._woken.put(None)
                with suppress(OSError):
                    os.close(self._file)
                self._forgotten.close()
        super().close()

    def _first_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            "v": LINE_VERSION,
            "at": self._time(record.created),
            "level": logging.getLevelName(record.levelno).lower(),
            "logger": logger_name(record),
        }

    def _fields(self, record: logging.LogRecord) -> dict[str, str | int]:
        """Return session, owner and other ids of the record. Another library may use these names for anything."""
        more: Mapping[str, object] = record.__dict__
        found = {name: value for name in _FIELDS if isinstance(value := more.get(name), str | int)}
        if not is_own(record):
            found = {name: self._clean_field(value) for name, value in found.items() if type(value) in (str, int)}
        return found

    def _clean_field(self, value: str | int) -> str | int:
        return self._clean(value, _FIELD_CHARS_MAX) if isinstance(value, str) else value

    def _entry(
        self, record: logging.LogRecord, formatted: FormattedRecord, fields: Mapping[str, str | int]
    ) -> dict[str, Any]:
        entry = self._first_fields(record) | {"text": self._clean(formatted.text, TEXT_CHARS_MAX), "pid": self._pid}
        entry |= fields
        if formatted.reference:
            entry["reference"] = formatted.reference
        if formatted.trace:
            entry["error"] = self._clean(formatted.trace[-TRACE_CHARS_MAX:], TRACE_CHARS_MAX)
        return entry

    def _time(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second, self._second_text = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{int((created - second) * 1000):03}Z"

    def _detail(
        self, record: logging.LogRecord, formatted: FormattedRecord, fields: Mapping[str, str | int]
    ) -> LogDetail:
        text, half = formatted.private_text, _DETAIL_CHARS_MAX // 2
        text = text if len(text) <= 2 * half else f"{text[:half]}\n[...]\n{text[-half:]}"
        session_id, owner, key = (str(fields.get(name) or "") for name in ("session", "owner", "key"))
        text = self._clean(text, _DETAIL_CHARS_MAX + 10)
        return LogDetail(record.created, formatted.reference, record.name, text, session_id, owner, key)

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
        lock = os.open(self._path.parent / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(lock, fcntl.LOCK_EX, _PATIENCE_S):
                # With the next record.
                self._unchecked_bytes = _CHECK_BYTES
                return
            if self._is_current():
                for number in range(ROTATED_MAX, 0, -1):
                    older = self._rotated_path(number - 1)
                    if older.exists():
                        older.replace(self._rotated_path(number))
            full, self._file = self._file, self._open()
            os.close(full)
        finally:
            os.close(lock)
            self._forgotten.reopen()

    def _is_current(self) -> bool:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(stat, os.fstat(self._file))

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _nothing() -> None:
    pass
