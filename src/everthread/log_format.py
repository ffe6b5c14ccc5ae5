"""Text of log records for the log file: nothing that a person, a model or another program has written.

Exceptions and `Private` texts are replaced by their type and a reference. Their full text is returned besides, for the
store. Tracebacks have frames and types, without messages and source lines. Messages of other libraries are private as
a whole.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from secrets import token_hex
from typing import cast

from msgspec import Struct

from everthread.domain.errors import EverthreadError
from everthread.domain.model import SessionKey
from everthread.log_context import Private

OWN_LOGGER = "everthread"
REFERENCE_BYTES = 4
CHAIN_MAX = 8
FRAMES_MAX = 40
"""The innermost frames of each traceback that are shown."""
_PLAIN = (str, int, float, PurePath, Enum, SessionKey, type(None))
_LOGGER_NAME = re.compile(r"[\w.-]{1,100}")


class FormattedRecord(Struct, frozen=True):
    """A log record as it may be written to the log file."""

    text: str
    trace: str = ""
    reference: str = ""
    """Set if something was left out: the id of the full text."""
    private_text: str = ""
    """The full text with its traceback; empty if nothing was left out."""


def format_record(record: logging.LogRecord) -> FormattedRecord:
    """Format a record. Raises `TypeError` or `ValueError` if its message and arguments do not match."""
    ours = is_own(record)
    if ours and not record.args and not record.exc_info and isinstance(record.msg, str):
        return FormattedRecord(record.msg)
    error = record.exc_info[1] if record.exc_info else None
    trace = format_trace(error) if error is not None else ""
    if not ours:
        reference = reference_of(record)
        return FormattedRecord(
            f"message of {logger_name(record)} (reference {reference})", trace, reference, _full_text(record)
        )
    if error is None and all(_is_public(value) for value in (record.msg, *_values(record))):
        return FormattedRecord(record.getMessage())
    reference = reference_of(record)
    return FormattedRecord(_public_text(record, reference), trace, reference, _full_text(record))


def is_own(record: logging.LogRecord) -> bool:
    """Return whether a logger of this program made the record."""
    return record.name == OWN_LOGGER or record.name.startswith(f"{OWN_LOGGER}.")


def logger_name(record: logging.LogRecord) -> str:
    """Return the name of the logger of a record, unless that may be any text."""
    return record.name if _LOGGER_NAME.fullmatch(record.name) else "another library"


def reference_of(record: logging.LogRecord) -> str:
    """Return the reference of a record: that of its caller, or a new one."""
    given = record.__dict__.get("reference")
    if not given:
        record.__dict__["reference"] = given = token_hex(REFERENCE_BYTES)
    return str(given)


def describe_error(error: BaseException) -> str:
    """Return the type of an exception, with the code of an error of the operating system."""
    name = _type_name(error)
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} {errno.errorcode.get(error.errno, error.errno)}"
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        kinds = sorted({_type_name(each) for each in group.exceptions})
        return f"{name} of {', '.join(kinds[:CHAIN_MAX])}"
    return name


def format_trace(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes: frames and types only."""
    parts: list[str] = []
    for each in reversed(list(_chain(error))):
        frames = traceback.StackSummary.extract(
            traceback.walk_tb(each.__traceback__), limit=-FRAMES_MAX, lookup_lines=False
        )
        lines = [f"  File {_file_name(frame.filename)}, line {frame.lineno}, in {frame.name[:100]}" for frame in frames]
        parts.append("\n".join(["Traceback (most recent call last):", *lines, describe_error(each)]))
    return "\n\nThen:\n\n".join(parts)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and len(seen) < CHAIN_MAX:
        yield each
        seen.add(id(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_public(value: object) -> bool:
    # Declared by the class itself: a subclass may have other texts.
    return isinstance(value, _PLAIN) or (isinstance(value, EverthreadError) and "log_safe" in vars(type(value)))


def _values(record: logging.LogRecord) -> tuple[object, ...]:
    args = record.args
    return tuple(args.values()) if isinstance(args, Mapping) else args or ()


def _public_text(record: logging.LogRecord, reference: str) -> str:
    """Return the message with a description in place of each private argument."""
    if not isinstance(record.msg, str):
        return f"{_describe(record.msg)} (reference {reference})"
    args = record.args
    if isinstance(args, Mapping):
        text = record.msg % {name: _describe(value) for name, value in args.items()}
    else:
        text = record.msg % tuple(_describe(value) for value in args) if args else record.msg
    return f"{text} (reference {reference})"


def _describe(value: object) -> object:
    if _is_public(value):
        return value
    if isinstance(value, BaseException):
        return describe_error(value)
    return value.kind[:80] if isinstance(value, Private) else type(value).__name__[:80]


def _full_text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{logging.Formatter().formatException(record.exc_info)}" if record.exc_info else text


def _type_name(error: BaseException) -> str:
    # The name of a type that was made at run time may be any text.
    name = type(error).__name__
    return name if name.isidentifier() and len(name) <= 80 else "Exception"


def _file_name(name: str) -> str:
    return f'"{name[-200:]}"' if os.path.isabs(name) or name.startswith("<frozen ") else "<generated code>"
