"""How a command ends when it could not do its work: one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import click

REFUSED = 1
USAGE = 2
RETRY = 75
CONFIGURATION = 78
INTERRUPTED = 130
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""A file that can't be used as things are, wherever that is noticed."""


def report(error: BaseException) -> int:
    """Tell the user; the exit code. With EVERTHREAD_DEBUG set, a bug is raised instead of told."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _aborted(error)
    if isinstance(error, click.UsageError):
        return _misused(error)
    from everthread.config.environment import debugging
    from everthread.domain.errors import EverthreadError

    if isinstance(error, EverthreadError):
        complain(str(error))
        return code_of(error)
    if isinstance(error, BrokenPipeError):
        _write_no_more()
        return REFUSED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _write_no_more()
        complain("no room left on the disk that the output goes to; free some space and try again")
        return RETRY
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
        complain(f"{error.filename}: {error.strerror}; mend its permissions, or choose another home with --home")
        return CONFIGURATION
    if debugging():
        raise error
    complain(f"unexpected {type(error).__name__}: {error}; run with EVERTHREAD_DEBUG=1 to see the traceback")
    return REFUSED


def _write_no_more() -> None:
    """What is left of the output can't be written, and would be complained of again when the program ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def code_of(error: Exception) -> int:
    from everthread.domain import errors

    match error:
        case errors.StoreBusy() | errors.DiskFull() | errors.ModelUnavailable() | errors.Busy() | errors.LockedOut():
            return RETRY
        case errors.Unavailable():
            return RETRY
        case errors.StoreUnwritable() | errors.StoreCorrupt() | errors.StoreTooNew() | errors.BadConfig():
            return CONFIGURATION
        case errors.ModelUnauthorized() | errors.ModelUnknown():
            return CONFIGURATION
        case errors.BadInput():
            return USAGE
        case _:
            return REFUSED


def _aborted(error: BaseException) -> int:
    """Ctrl-C is an interruption; the end of the input where an answer was wanted is a no."""
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return INTERRUPTED
    complain("no answer; nothing was changed (--yes answers in advance)")
    return REFUSED


def _misused(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return USAGE
    path = error.ctx.command_path if error.ctx else "everthread"
    complain(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return USAGE


def complain(text: str) -> None:
    from everthread.cli.output import one_line

    click.echo(f"everthread: {one_line(text)}", err=True)
