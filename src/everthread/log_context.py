"""Structured log fields: of a session key, and of the work that is going on. Also a cheap way to log them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

from everthread.domain.model import SessionKey

T = TypeVar("T")

_SCOPE: ContextVar[Mapping[str, str] | None] = ContextVar("log_scope", default=None)


class Private:
    """Text that may quote a person or come from elsewhere. The log file has `kind` and a reference in its place.

    The text may be an exception that code of others has raised.
    """

    __slots__ = ("kind", "text")

    def __init__(self, text: object, kind: str = "") -> None:
        self.text = text
        self.kind = kind or (type(text).__name__ if isinstance(text, BaseException) else "private text")

    def __str__(self) -> str:
        return str(self.text)


def log_fields(key: SessionKey, session_id: str = "", turn_id: str = "", owner: str = "") -> dict[str, str]:
    """Return the `extra` fields of a log record: platform, key and the ids that are known."""
    fields = {"platform": key.platform, "key": str(key)}
    if session_id:
        fields["session"] = session_id
    if turn_id:
        fields["turn_id"] = turn_id
    if owner:
        fields["owner"] = owner
    return fields


@contextmanager
def log_scope(**fields: str) -> Generator[None]:
    """Add fields such as session and owner to every record of this work, those of libraries included.

    The fields replace those of an outer scope. A field of the record itself takes precedence.
    """
    token = _SCOPE.set({name: value for name, value in fields.items() if value})
    try:
        yield
    finally:
        _SCOPE.reset(token)


def enter_log_scope(**fields: str) -> None:
    """Add fields to every record of the running task from now on, as for an HTTP request that was authenticated."""
    _SCOPE.set({name: value for name, value in fields.items() if value})


def outside_log_scope(start: Callable[[], T]) -> T:
    """Call a function that starts lasting work, such as a connection: it must not inherit this scope."""
    context = copy_context()
    context.run(_SCOPE.set, None)
    return context.run(start)


def current_log_scope() -> Mapping[str, str]:
    """Return the fields of the scope that this code runs in."""
    return _SCOPE.get() or {}


def log_info(log: logging.Logger, text: str, fields: dict[str, object]) -> None:
    """Log like `log.info`, but skip the lookup of the calling file and line, which is most of its cost."""
    level = {"levelno": logging.INFO, "levelname": "INFO"}
    log.handle(logging.makeLogRecord({"name": log.name, "msg": text, **level, **fields}))
