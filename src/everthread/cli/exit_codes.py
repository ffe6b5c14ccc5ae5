"""Exit codes, and `report`: turn an exception into one line on stderr and an exit code."""

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
"""Errors of a file that can't be used: a configuration error wherever it occurs."""


def report(error: BaseException) -> int:
    """Print an error and return the exit code. With EVERTHREAD_DEBUG set, unexpected errors are raised."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _aborted(error)
    if isinstance(error, click.UsageError):
        return _misused(error)
    from everthread.config.environment import debugging
    from everthread.domain.errors import EverthreadError

    if isinstance(error, EverthreadError):
        print_error(str(error))
        return exit_code(error)
    if isinstance(error, BrokenPipeError):
        discard_output()
        return REFUSED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        discard_output()
        print_error("no space left on the device of the output; free some space and try again")
        return RETRY
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
        print_error(f"{error.filename}: {error.strerror}; fix its permissions, or choose another home with --home")
        return CONFIGURATION
    if debugging():
        raise error
    print_error(f"unexpected {type(error).__name__}: {error}; run with EVERTHREAD_DEBUG=1 to see the traceback")
    return REFUSED


def discard_output() -> None:
    """Redirect stdout to /dev/null, so that flushing it at exit does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    from everthread.domain import errors

    match error:
        case errors.StoreBusy() | errors.DiskFull() | errors.Busy() | errors.LockedOut():
            return RETRY
        case errors.ModelUnavailable() | errors.Unavailable():
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
    """Tell Ctrl-C from the end of input at a question, which counts as no."""
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return INTERRUPTED
    print_error("no answer; nothing was changed. Use --yes to skip the question")
    return REFUSED


def _misused(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return USAGE
    path = error.ctx.command_path if error.ctx else "everthread"
    print_error(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return USAGE


def print_error(text: str) -> None:
    from everthread.domain.text_format import one_line

    click.echo(f"everthread: {one_line(text)}", err=True)
