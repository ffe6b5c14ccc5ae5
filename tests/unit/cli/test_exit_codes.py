"""Errors become one line on stderr and an exit code."""

from __future__ import annotations

import errno

import click
import pytest

from everthread.cli.exit_codes import CONFIGURATION, INTERRUPTED, REFUSED, RETRY, USAGE, exit_code, report
from everthread.domain import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreBusy("x"), RETRY),
        (errors.DiskFull("x"), RETRY),
        (errors.ModelUnavailable("x"), RETRY),
        (errors.Unavailable("honcho"), RETRY),
        (errors.StoreCorrupt("x"), CONFIGURATION),
        (errors.BadConfig("x"), CONFIGURATION),
        (errors.ModelUnauthorized("x"), CONFIGURATION),
        (errors.BadInput("x"), USAGE),
        (errors.NotFound("x"), REFUSED),
        (ValueError("x"), REFUSED),
    ],
)
def test_each_error_has_an_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.NotFound("no session\n'x'"), REFUSED, "everthread: no session 'x'\n"),
        (click.UsageError("No such option."), USAGE, "everthread: No such option (see everthread --help)\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (click.Abort(), REFUSED, "everthread: no answer; nothing was changed. Use --yes to skip the question\n"),
        (
            OSError(errno.EACCES, "Permission denied", "/home/x"),
            CONFIGURATION,
            "everthread: /home/x: Permission denied; fix its permissions, or choose another home with --home\n",
        ),
    ],
)
def test_an_error_is_reported_as_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == code
    assert capsys.readouterr() == ("", line)


def test_unexpected_errors_are_raised_while_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        report(ZeroDivisionError("a bug"))
