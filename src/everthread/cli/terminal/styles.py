"""Colours and weights. Uses the terminal's own palette, which suits light and dark backgrounds."""

from __future__ import annotations

from msgspec import Struct

_RESET = "\x1b[0m"


class TextStyle(Struct, frozen=True):
    colour: bool = True
    """False to use weights only, without colours."""
    dark: bool = True
    """True on a dark background; light colours are unreadable on white."""

    @property
    def accent_code(self) -> str:
        return "36" if self.dark else "34"

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}{_RESET}"

    def faint(self, text: str) -> str:
        return f"\x1b[2m{text}{_RESET}"

    def good(self, text: str) -> str:
        return self._colour("32", text)

    def bad(self, text: str) -> str:
        return self._colour("31", text)

    def accent(self, text: str) -> str:
        return self._colour(self.accent_code, text)

    def _colour(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_RESET}" if self.colour else text
