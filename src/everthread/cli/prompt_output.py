"""What prompt_toolkit draws on: the terminal at stdout, which is never asked where its cursor is."""

from __future__ import annotations

import os
import sys

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output


def drawn_on(term: str | None, *, colour: bool) -> Vt100_Output:
    return Vt100_Output(
        sys.stdout,
        _size,
        term=term,
        default_color_depth=ColorDepth.DEPTH_4_BIT if colour else ColorDepth.DEPTH_1_BIT,
        # Whoever is asked where the cursor is answers late or never; the height is of no interest here.
        enable_cpr=False,
    )


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        # It was hung up.
        columns = rows = 0
    # One that does not say how large it is.
    return Size(rows=rows or 24, columns=columns or 80)
