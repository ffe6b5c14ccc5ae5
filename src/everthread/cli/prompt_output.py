"""The terminal at stdout as prompt_toolkit draws on it, without cursor position requests."""

from __future__ import annotations

import os
import sys

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output


def terminal_output(term: str | None, *, colour: bool) -> Vt100_Output:
    return Vt100_Output(
        sys.stdout,
        _size,
        term=term,
        default_color_depth=ColorDepth.DEPTH_4_BIT if colour else ColorDepth.DEPTH_1_BIT,
        # Terminals answer cursor position requests late or never, and the height is not needed.
        enable_cpr=False,
    )


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        # The terminal was closed.
        columns = rows = 0
    # Some terminals report a size of 0.
    return Size(rows=rows or 24, columns=columns or 80)
