"""Lay out tables: columns as wide as their content, reduced to the available width."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.cli.terminal.text import Line, Span, width, wrap_spans

_GAP = 2


class Cell(Struct, frozen=True):
    spans: Sequence[Span]
    align_right: bool = False


def table_lines(rows: Sequence[Sequence[Cell]], columns: int) -> list[Line]:
    """Format rows as a table. The first row is the heading."""
    count = max(map(len, rows), default=0)
    if not count:
        return []
    natural = [
        max((width(row[column].spans) for row in rows if column < len(row)), default=0) for column in range(count)
    ]
    room = columns - 1 - _GAP * (count - 1)
    widths = _reduce(natural, max(room, count))
    heading, *others = [_row(row, widths) for row in rows]
    rule = [Span(" "), Span("─" * (sum(widths) + _GAP * (count - 1)), ("2",))]
    return [*heading, rule, *(line for row in others for line in row)]


def _reduce(natural: list[int], room: int) -> list[int]:
    """Reduce the widest columns to the same width, so that the row fits. `room` is at least the number of columns."""
    wanted = [max(wide, 1) for wide in natural]
    limits = range(min(max(wanted), room), 0, -1)
    limit = next(limit for limit in limits if sum(min(wide, limit) for wide in wanted) <= room)
    widths = [min(wide, limit) for wide in wanted]
    reduced = [column for column, wide in enumerate(wanted) if wide > limit]
    for column in reduced[len(reduced) - (room - sum(widths)) :]:
        widths[column] += 1
    return widths


def _row(row: Sequence[Cell], widths: list[int]) -> list[Line]:
    cells = [wrap_spans(cell.spans, wide) for cell, wide in zip(row, widths, strict=False)]
    lines: list[Line] = []
    for number in range(max((len(cell) for cell in cells), default=0)):
        line: Line = [Span(" ")]
        for column, cell in enumerate(cells):
            content = _without_end(cell[number]) if number < len(cell) else []
            blank = Span(" " * (widths[column] - width(content)))
            line += [Span(" " * _GAP)] if column else []
            line += [blank, *content] if row[column].align_right else [*content, blank]
        lines.append(line)
    return lines


def _without_end(line: Line) -> Line:
    """Remove the trailing blank that wrapping leaves."""
    return [*line[:-1], line[-1].replace(line[-1].text.rstrip())] if line else line
