"""Draw a terminal screen as an SVG picture that embeds no fonts and styles the same on light and dark pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape

from pyte.screens import Char

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.4, 19, 14
MARGIN, TOP = 16, 40
PAPER, BORDER, TEXT, FAINT = "#12161d", "#3d444d", "#dfe4ea", "#8f99a5"
COLOURS = {
    "default": TEXT,
    "black": "#5c6673",
    "red": "#ff7b72",
    "green": "#5bc873",
    "brown": "#e3b341",
    "blue": "#79b8ff",
    "magenta": "#d2a8ff",
    "cyan": "#6bd5e8",
    "white": "#dfe4ea",
}
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def svg(rows: Sequence[Sequence[Char]], *, title: str, cursor: tuple[int, int] | None = None) -> str:
    """Draw the rows of a screen in a window with a title. Blinking cells are drawn as faint text."""
    width = round(max(map(len, rows)) * CELL_WIDTH + 2 * MARGIN)
    height = len(rows) * CELL_HEIGHT + TOP + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9" fill="{PAPER}" stroke="{BORDER}"/>',
        *(f'<circle cx="{20 + 18 * button}" cy="20" r="5.5" fill="{BORDER}"/>' for button in range(3)),
        f'<g font-family="{FONTS}" font-size="{FONT_SIZE}" xml:space="preserve">',
        f'<text x="{width / 2:g}" y="25" text-anchor="middle" fill="{FAINT}">{escape(title)}</text>',
        *(run for number, row in enumerate(rows) for run in _row(number, row)),
    ]
    if cursor is not None:
        column, row = cursor
        lines.append(
            f'<rect x="{_x(column)}" y="{_y(row) - FONT_SIZE:g}" width="{CELL_WIDTH}" height="{CELL_HEIGHT - 2}" '
            f'fill="{TEXT}"/>'
        )
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _row(number: int, row: Sequence[Char]) -> Iterator[str]:
    column = 0
    for style, cells in itertools.groupby(row, key=_style):
        text = "".join(cell.data for cell in cells)
        columns, indent = len(text), len(text) - len(text.lstrip())
        if text.strip():
            # A fixed length keeps columns aligned with any font.
            length = f'textLength="{len(text.strip()) * CELL_WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
            yield f'<text x="{_x(column + indent)}" y="{_y(number)}" {length} {style}>{escape(text.strip())}</text>'
        column += columns


def _style(cell: Char) -> str:
    colour = FAINT if cell.blink and cell.fg == "default" else COLOURS.get(cell.fg.removeprefix("bright"), TEXT)
    styles = [f'fill="{colour}"']
    styles += ['font-weight="bold"'] if cell.bold else []
    styles += ['font-style="italic"'] if cell.italics else []
    styles += ['text-decoration="underline"'] if cell.underscore and cell.data.strip() else []
    return " ".join(styles)


def _x(column: int) -> str:
    return f"{MARGIN + column * CELL_WIDTH:g}"


def _y(row: int) -> float:
    return TOP + row * CELL_HEIGHT + FONT_SIZE
