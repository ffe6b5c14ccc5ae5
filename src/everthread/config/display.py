"""What the terminal can show, as far as its variables say."""

from __future__ import annotations

import os

from msgspec import Struct


class Display(Struct, frozen=True):
    term: str = "dumb"
    colour: bool = True
    """False where the user wants none (NO_COLOR)."""
    dark: bool = True
    """What is behind the text."""


def display() -> Display:
    # COLORFGBG is FOREGROUND;BACKGROUND, each one of the 16 colours: of those, 7 and all from 9 on are light.
    behind = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    light = behind.isdecimal() and (int(behind) == 7 or int(behind) >= 9)
    return Display(os.environ.get("TERM", "") or "dumb", not os.environ.get("NO_COLOR"), not light)
