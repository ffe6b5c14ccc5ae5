"""Detect the capabilities of the terminal from environment variables."""

from __future__ import annotations

import os
from enum import Enum

from msgspec import Struct

from everthread.config.schema import Background


class ResizeBehavior(Enum):
    """Reaction of a terminal's lines to a change of its width."""

    CUTS = "cuts"
    WRAPS = "wraps"
    """Lines are wrapped again, as in most terminals."""
    WRAPS_ERASED = "wraps erased"
    """Lines are wrapped again together with erased text at their ends, as in tmux."""


class Display(Struct, frozen=True):
    term: str = "dumb"
    colour: bool = True
    """False if the user sets NO_COLOR."""
    dark: bool = True
    """True for a dark background."""
    resized: ResizeBehavior = ResizeBehavior.WRAPS


# PuTTY and old versions of xterm set TERM=xterm; later terminals with its codes set xterm-256color or similar.
_CUTS = ("xterm", "linux", "cygwin")
_CUTS_OF_ANY_KIND = ("rxvt", "vt1", "vt2", "eterm")


def detect_display(background: Background = "auto") -> Display:
    # COLORFGBG is FOREGROUND;BACKGROUND, each one of 16 colours. Colour 7 and those from 9 on are light.
    behind = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    says_light = behind.isdecimal() and (int(behind) == 7 or int(behind) >= 9)
    light = says_light if background == "auto" else background == "light"
    term = os.environ.get("TERM", "") or "dumb"
    return Display(term, not os.environ.get("NO_COLOR"), not light, _resized(term))


def _resized(term: str) -> ResizeBehavior:
    # tmux and screen may share a TERM, but each sets its own variable. Over SSH only TERM is passed on.
    if "TMUX" in os.environ:
        return ResizeBehavior.WRAPS_ERASED
    if "STY" in os.environ or "XTERM_VERSION" in os.environ or term in _CUTS or term.startswith(_CUTS_OF_ANY_KIND):
        return ResizeBehavior.CUTS
    return ResizeBehavior.WRAPS_ERASED if term.startswith(("tmux", "screen")) else ResizeBehavior.WRAPS
