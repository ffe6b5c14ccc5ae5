"""What the terminal can show, as far as its variables say."""

from __future__ import annotations

import os
from enum import Enum

from msgspec import Struct

from everthread.config.schema import Background


class Resized(Enum):
    """What a terminal does with the lines on it when its width changes."""

    CUTS = "cuts"
    WRAPS = "wraps"
    """As most do: each is wrapped anew."""
    WRAPS_ERASED = "wraps erased"
    """As tmux does: what was erased at the end of a line still counts."""


class Display(Struct, frozen=True):
    term: str = "dumb"
    colour: bool = True
    """False where the user wants none (NO_COLOR)."""
    dark: bool = True
    """What is behind the text."""
    resized: Resized = Resized.WRAPS


# PuTTY and an old xterm call themselves xterm; those that took over its codes later say xterm-256color or so.
_CUTS = ("xterm", "linux", "cygwin")
_CUTS_OF_ANY_KIND = ("rxvt", "vt1", "vt2", "eterm")


def display(background: Background = "auto") -> Display:
    # COLORFGBG is FOREGROUND;BACKGROUND, each one of the 16 colours: of those, 7 and all from 9 on are light.
    behind = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    says_light = behind.isdecimal() and (int(behind) == 7 or int(behind) >= 9)
    light = says_light if background == "auto" else background == "light"
    term = os.environ.get("TERM", "") or "dumb"
    return Display(term, not os.environ.get("NO_COLOR"), not light, _resized(term))


def _resized(term: str) -> Resized:
    # tmux and screen call themselves alike, but each says that it is there. From afar nothing is heard of that.
    if "TMUX" in os.environ:
        return Resized.WRAPS_ERASED
    if "STY" in os.environ or "XTERM_VERSION" in os.environ or term in _CUTS or term.startswith(_CUTS_OF_ANY_KIND):
        return Resized.CUTS
    return Resized.WRAPS_ERASED if term.startswith(("tmux", "screen")) else Resized.WRAPS
