"""Lay out tables: columns as wide as their content, reduced to the available width."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.cli.terminal.text import Line, Span, width, wrapped_spans

_GAP = 2


class Cell(Struct, frozen=True):
    spans: Sequence[Span]
    to_the_right: bool = False


def table_lines(rows: Sequence[Sequence[Cell]], columns: int) -> list[Line]:
    """Format rows as a table. The first row is the heading."""
    count = max((len(row) for row in rows), default=0)
    if not count:
        return []
    natural = [max((width(row[place].spans) for row in rows if place < len(row)), default=0) for place in range(count)]
    room = columns - 1 - _GAP * (count - 1)
    widths = _shared_out(natural, max(room, count))
    heading, *others = [_row(row, widths) for row in rows]
    rule = [Span(" "), Span("─" * (sum(widths) + _GAP * (count - 1)), ("2",))]
    return [*heading, rule, *(line for row in others for line in row)]


def _shared_out(natural: list[int], room: int) -> list[int]:
    """Reduce the widest columns until the row fits."""
    widths = [max(wide, 1) for wide in natural]
    while sum(widths) > room:
        widest = max(widths)
        if widest <= 1:
            break
        # Reduce all columns of the greatest width together, at most to the next smaller width.
        those = [place for place, wide in enumerate(widths) if wide == widest]
        below = max((wide for wide in widths if wide < widest), default=1)
        less = min(widest - below, max((sum(widths) - room) // len(those), 1))
        for place in those[: max(sum(widths) - room, 1)]:
            widths[place] -= less
    return widths


def _row(row: Sequence[Cell], widths: list[int]) -> list[Line]:
    cells = [wrapped_spans(cell.spans, wide) for cell, wide in zip(row, widths, strict=False)]
    lines: list[Line] = []
    for number in range(max((len(cell) for cell in cells), default=0)):
        line: Line = [Span(" ")]
        for place, cell in enumerate(cells):
            content = _without_end(cell[number]) if number < len(cell) else []
            blank = Span(" " * (widths[place] - width(content)))
            line += [*([Span(" " * _GAP)] if place else []), *_placed(content, blank, row[place])]
        lines.append(line)
    return lines


def _placed(content: Line, blank: Span, cell: Cell) -> Line:
    return [blank, *content] if cell.to_the_right else [*content, blank]


def _without_end(line: Line) -> Line:
    """Remove the trailing blank that wrapping leaves."""
    return [*line[:-1], line[-1].but(line[-1].text.rstrip())] if line else line
