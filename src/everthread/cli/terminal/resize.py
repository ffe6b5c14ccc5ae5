"""Finding the place where the lower end began after the terminal has a new width, and has moved its lines about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout import Layout
from prompt_toolkit.layout.screen import Char, Screen
from prompt_toolkit.output import Output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.styles import BaseStyle

from everthread.config.terminal import Resized


class RewrappedRenderer(Renderer):
    """What it drew is erased from where it begins now. The usual one goes up as many rows as it had drawn,
    and leaves behind those that were added when the terminal wrapped what no longer fitted."""

    def __init__(self, style: BaseStyle, output: Output, resized: Resized) -> None:
        super().__init__(style, output)
        self._resized = resized
        self._longest: dict[int, int] = {}
        """How long each row was at most since all was erased."""

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        # The new size may be seen here before anybody was told of it.
        if self._last_size not in (None, self.output.get_size()):
            self.erase(leave_alternate_screen=False)
        super().render(app, layout, is_done)
        if self._resized is Resized.WRAPS_ERASED and (drawn := self._last_screen) is not None:
            for row in range(drawn.height):
                self._longest[row] = max(self._longest.get(row, 0), _length(drawn.data_buffer[row]))

    def erase(self, leave_alternate_screen: bool = True) -> None:
        drawn, columns = self._last_screen, self.output.get_size().columns
        if drawn is not None:
            other = self._last_size is not None and columns != self._last_size.columns
            if other and self._resized is not Resized.CUTS:
                self._cursor_pos = Point(0, rows_above(drawn, self._cursor_pos, columns, self._longest))
            self.output.write_raw("\r")
            self.output.cursor_up(self._cursor_pos.y)
            if drawn.height > 1:
                # tmux keeps what is erased from the very first row on, for whoever scrolls up: it goes in two steps.
                # There may be no row below any more, so the way back is not one row up but where it was.
                self.output.write_raw("\x1b7\x1b[2K\x1b[B\x1b[J\x1b8")
            self._cursor_pos = Point(0, 0)
        self._longest.clear()
        super().erase(leave_alternate_screen)


def rows_above(drawn: Screen, cursor: Point, columns: int, longest: Mapping[int, int]) -> int:
    """How far below the beginning of what was drawn the cursor is, once its rows are wrapped at so many columns."""
    whole = sum(max(_rows(drawn.data_buffer[y], columns), -(-longest.get(y, 0) // columns)) for y in range(cursor.y))
    # The row that it is in is wrapped as well; a cursor right behind its end does not begin another.
    return whole + max(cursor.x - 1, 0) // columns


def _length(row: Mapping[int, Char]) -> int:
    """Without what is empty at its end: that is not there for a terminal."""
    return max((place for place, cell in row.items() if cell.char.strip()), default=-1) + 1


def _rows(row: Mapping[int, Char], columns: int) -> int:
    """On how many rows it is shown."""
    rows, at = 1, 0
    for place in range(_length(row)):
        # Behind a wide character there is a place without any.
        width = row[place].width if place in row else 1
        if at + width > columns:
            rows, at = rows + 1, 0
        at += width
    return rows
