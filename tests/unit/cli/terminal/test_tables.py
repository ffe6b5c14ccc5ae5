"""Markdown tables laid out for a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from everthread.cli.terminal.tables import Cell, table_lines
from everthread.cli.terminal.text import Span


def _rows(cells: list[list[str]], columns: int, *, right: int = -1) -> list[str]:
    table = [[Cell([Span(text)], align_right=index == right) for index, text in enumerate(row)] for row in cells]
    return ["".join(span.text for span in line).rstrip() for line in table_lines(table, columns)]


def test_columns_are_as_wide_as_their_content_and_aligned() -> None:
    rows = _rows([["city", "days"], ["Lisbon", "3"]], 40, right=1)
    assert rows == [" city    days", " ────────────", " Lisbon     3"]


def test_the_widest_column_is_wrapped_if_the_table_is_too_wide() -> None:
    rows = _rows([["name", "text"], ["short", "long " * 20]], 40)
    assert max(map(len, rows)) <= 40
    assert rows[2].startswith(" short  long")
    assert " ".join(rows).count("long") == 20


def test_columns_that_are_too_wide_get_equal_widths() -> None:
    rows = _rows([["a" * 30, "b" * 50, "c"]], 26)
    assert rows[0] == f" {'a' * 10}  {'b' * 10}  c"
    # The last of the reduced columns gets the column that cannot be shared.
    assert _rows([["a" * 30, "b" * 50, "c"]], 27)[0] == f" {'a' * 10}  {'b' * 11}  c"


@given(st.lists(st.lists(st.text("ab 日", max_size=40), min_size=1, max_size=3), max_size=4), st.integers(20, 90))
def test_no_row_is_wider_than_the_terminal(cells: list[list[str]], columns: int) -> None:
    assert all(get_cwidth(row) <= columns for row in _rows(cells, columns))


def test_a_table_of_many_wide_columns_is_laid_out_fast() -> None:
    rows = _rows([["x" * 2_000] * 300], 100)
    assert "".join(rows).count("x") == 2_000 * 300
