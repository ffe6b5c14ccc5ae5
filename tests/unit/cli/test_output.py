"""Tables of the verbs: whole in a pipe, cut to the terminal's width on one."""

from __future__ import annotations

import pytest

from everthread.cli.output import fit_widths


def test_what_fits_is_left_as_it_is() -> None:
    assert fit_widths([26, 40, 5], 80) == [26, 40, 5]


def test_in_a_pipe_nothing_is_cut() -> None:
    assert fit_widths([26, 400, 500], None) == [26, 400, 500]


@pytest.mark.parametrize("room", [70, 80, 100, 120, 140])
def test_lines_fit(room: int) -> None:
    widths = fit_widths([26, 41, 4, 5, 16, 50], room)
    assert widths[0] == 26
    assert sum(widths) + 2 * (len(widths) - 1) == min(room, 26 + 41 + 4 + 5 + 16 + 2 * 4 if room < 114 else room)


def test_the_last_column_gives_way_first() -> None:
    assert fit_widths([10, 30, 20, 40], 100) == [10, 30, 20, 34]


def test_a_last_column_of_which_hardly_anything_would_remain_is_left_out() -> None:
    assert fit_widths([10, 30, 20, 40], 70) == [10, 30, 20]


def test_then_the_widest_give_way() -> None:
    assert fit_widths([10, 30, 20, 40], 54) == [10, 20, 20]
    assert fit_widths([10, 30, 20, 40], 50) == [10, 18, 18]


def test_where_there_is_no_room_at_all_something_is_left_of_each() -> None:
    assert fit_widths([26, 41, 30, 50], 20) == [26, 10, 10]
