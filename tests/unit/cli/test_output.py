"""Results as text or JSON, confirmations, and tables cut to the width of the terminal."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from everthread.cli.output import Result, confirm, fit_widths, render, strip_control_chars


def test_rows_that_fit_are_unchanged() -> None:
    assert fit_widths([26, 40, 5], 80) == [26, 40, 5]


def test_rows_are_not_cut_in_a_pipe() -> None:
    assert fit_widths([26, 400, 500], None) == [26, 400, 500]


@pytest.mark.parametrize("room", [70, 80, 100, 120, 140])
def test_cut_rows_fit_the_terminal(room: int) -> None:
    widths = fit_widths([26, 41, 4, 5, 16, 50], room)
    assert widths[0] == 26
    assert sum(widths) + 2 * (len(widths) - 1) == min(room, 26 + 41 + 4 + 5 + 16 + 2 * 4 if room < 114 else room)


def test_the_last_column_is_cut_first() -> None:
    assert fit_widths([10, 30, 20, 40], 100) == [10, 30, 20, 34]


def test_a_last_column_that_would_be_too_narrow_is_left_out() -> None:
    assert fit_widths([10, 30, 20, 40], 70) == [10, 30, 20]


def test_the_widest_columns_are_cut_next() -> None:
    assert fit_widths([10, 30, 20, 40], 54) == [10, 20, 20]
    assert fit_widths([10, 30, 20, 40], 50) == [10, 18, 18]


def test_every_column_keeps_something_on_the_narrowest_terminal() -> None:
    assert fit_widths([26, 41, 30, 50], 20) == [26, 10, 10]


def test_a_failed_result_is_printed_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    render(Result({}, "fine"), False)
    with pytest.raises(click.exceptions.Exit) as failed:
        render(Result({"ok": False}, "bad"), True, ok=False)
    assert failed.value.exit_code == 1
    assert capsys.readouterr().out == 'fine\n{\n  "ok": false\n}\n'


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_a_refused_confirmation_exits_with_1_and_keeps_stdout_for_json(answer: str, code: int) -> None:
    @click.command()
    def command() -> None:
        confirm("Delete it?", "Nothing was deleted.", yes=False, as_json=True)

    done = CliRunner().invoke(command, input=answer)
    assert (done.exit_code, done.stdout) == (code, "")
    assert ("Nothing was deleted." in done.stderr) == bool(code)


def test_no_confirmation_is_asked_for_with_yes() -> None:
    confirm("Delete it?", "Nothing was deleted.", yes=True, as_json=False)


def test_stored_text_cannot_reorder_what_a_terminal_shows():
    assert strip_control_chars("user\u202egpj.exe \u2066x\u2069") == "user\\u202egpj.exe \\u2066x\\u2069"
    # Text in a right-to-left script, with its marks, is unchanged.
    assert strip_control_chars("\u05e9\u05dc\u05d5\u05dd\u200f \u0645") == "\u05e9\u05dc\u05d5\u05dd\u200f \u0645"
