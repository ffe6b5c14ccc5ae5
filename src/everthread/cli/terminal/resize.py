"""Find the start of the input area after a resize, when the terminal has wrapped its lines again."""

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

from everthread.config.terminal import ResizeBehavior


class RewrappedRenderer(Renderer):
    """A renderer that erases its output from its current start, after a resize too.

    The base class moves up by the number of rows it drew, and misses rows that the terminal added by wrapping.
    """

    def __init__(self, style: BaseStyle, output: Output, resized: ResizeBehavior) -> None:
        super().__init__(style, output)
        self._resized = resized
        self._longest: dict[int, int] = {}
        """The maximum length of each row since the last erase."""

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        # The size may change before the resize signal is handled.
        if self._last_size not in (None, self.output.get_size()):
            self.erase(leave_alternate_screen=False)
        super().render(app, layout, is_done)
        if self._resized is ResizeBehavior.WRAPS_ERASED and (screen := self._last_screen) is not None:
            for row in range(screen.height):
                self._longest[row] = max(self._longest.get(row, 0), _length(screen.data_buffer[row]))

    def erase(self, leave_alternate_screen: bool = True) -> None:
        screen, columns = self._last_screen, self.output.get_size().columns
        if screen is not None:
            other = self._last_size is not None and columns != self._last_size.columns
            if other and self._resized is not ResizeBehavior.CUTS:
                self._cursor_pos = Point(0, rows_above(screen, self._cursor_pos, columns, self._longest))
            self.output.write_raw("\r")
            self.output.cursor_up(self._cursor_pos.y)
            if screen.height > 1:
                # tmux copies to its scrollback what is erased from the top row on, so erase in two steps. Restore the
                # saved cursor instead of moving up: there may be no row below.
                self.output.write_raw("\x1b7\x1b[2K\x1b[B\x1b[J\x1b8")
            self._cursor_pos = Point(0, 0)
        self._longest.clear()
        super().erase(leave_alternate_screen)


def rows_above(screen: Screen, cursor: Point, columns: int, longest: Mapping[int, int]) -> int:
    """Return the cursor's distance in rows from the start of the output, after wrapping to that many columns."""
    whole = sum(max(_rows(screen.data_buffer[y], columns), -(-longest.get(y, 0) // columns)) for y in range(cursor.y))
    # Wrap the cursor's row too. A cursor just behind the last column stays on its row.
    return whole + max(cursor.x - 1, 0) // columns


def _length(row: Mapping[int, Char]) -> int:
    """The length of a row without trailing blanks, which terminals do not wrap."""
    return max((column for column, cell in row.items() if cell.char.strip()), default=-1) + 1


def _rows(row: Mapping[int, Char], columns: int) -> int:
    """The number of rows that a row takes after wrapping."""
    rows, at = 1, 0
    for column in range(_length(row)):
        # The cell behind a wide character is missing.
        width = row[column].width if column in row else 1
        if at + width > columns:
            rows, at = rows + 1, 0
        at += width
    return rows
