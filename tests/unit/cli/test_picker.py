"""The picker: filtering, moving, and real key strokes."""

from __future__ import annotations

import asyncio

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from everthread.cli.picker import PickerState, pick

ROWS = ["Trip to Lisbon", "Taxes 2026", "Trip to Oslo", "日本旅行"]
DOWN, UP, ENTER, ESC = "\x1b[B", "\x1b[A", "\r", "\x1b"


def picked(keys: str, rows: list[str] = ROWS) -> int | None:
    async def run() -> int | None:
        with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
            typed.send_text(keys)
            async with asyncio.timeout(5):
                return await pick("Sessions", rows)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("keys", "index"),
    [
        (ENTER, 0),
        (DOWN + ENTER, 1),
        (DOWN * 9 + ENTER, 3),
        (DOWN + DOWN + UP + ENTER, 1),
        ("oslo" + ENTER, 2),
        ("trip" + DOWN + ENTER, 2),
        ("lisbon TRIP" + ENTER, 0),
        ("日本" + ENTER, 3),
        ("oslox\x7f" + ENTER, 2),
        ("nothing\x15" + DOWN + ENTER, 1),
        ("\x1b[200~oslo\n\x1b[201~" + ENTER, 2),
        (ESC, None),
        ("q", None),
        ("\x03", None),
        # Without a match, Enter selects nothing.
        ("zzz" + ENTER + "\x03", None),
        # After other typed text, q is a letter.
        ("2026q" + ENTER + "\x03", None),
    ],
)
def test_keys_choose_a_row(keys: str, index: int | None) -> None:
    assert picked(keys) == index


def test_an_empty_list_shows_no_picker() -> None:
    assert picked("", rows=[]) is None


def test_the_selected_row_stays_selected_while_it_matches() -> None:
    state = PickerState.of(ROWS).moved(2).filtered("trip")
    assert state.chosen == 2
    assert state.filtered("lisbon").chosen == 0
    assert state.filtered("zzz").chosen is None


def test_the_window_follows_the_selection_and_stays_within_the_rows() -> None:
    state = PickerState.of([str(n) for n in range(100)])
    assert state.window(10) == range(0, 10)
    assert state.moved(50).window(10) == range(45, 55)
    assert state.moved(99).window(10) == range(90, 100)
    assert PickerState.of(ROWS).moved(1).window(10) == range(0, 4)


def test_a_row_cannot_move_the_cursor() -> None:
    assert PickerState.of(["a\x1b[31m\nb"]).rows == ("a [31m b",)
