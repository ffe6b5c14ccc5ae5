"""The few colours and weights that are used. They are the terminal's own, so that light and dark both work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Ink:
    colour: bool = True
    """False where the user wants none (NO_COLOR): weights stay, colours go."""
    dark: bool = True
    """What is behind the text, for the colours of code."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Ink:
        # COLORFGBG is FOREGROUND;BACKGROUND, each one of the 16 colours; 7 and from 9 on the background is light.
        behind = environment.get("COLORFGBG", "").rpartition(";")[2]
        light = behind.isdigit() and (int(behind) == 7 or int(behind) >= 9)
        return cls(colour=not environment.get("NO_COLOR"), dark=not light)

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}{_RESET}"

    def faint(self, text: str) -> str:
        return f"\x1b[2m{text}{_RESET}"

    def good(self, text: str) -> str:
        return self._coloured("32", text)

    def bad(self, text: str) -> str:
        return self._coloured("31", text)

    def accent(self, text: str) -> str:
        return self._coloured("36", text)

    def _coloured(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_RESET}" if self.colour else text
