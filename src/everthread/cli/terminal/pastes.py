"""Placeholders for long pastes, which are impractical to edit in the input line."""

from __future__ import annotations

import re

PASTED_CHARS_MAX = 1_000
PASTED_LINES_MAX = 8
KEPT_MAX = 20
_PLACEHOLDER = re.compile(r"\[pasted (\d+): [^\]]*\]")


class Pastes:
    """Keeps the last `KEPT_MAX` long pastes, so that a message from the history can be sent again."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._count = 0

    def shorten(self, text: str) -> str:
        """Return the text to insert for a paste: a placeholder if it is long, else the paste itself."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.rstrip("\n").count("\n") + 1
        if len(text) <= PASTED_CHARS_MAX and lines <= PASTED_LINES_MAX:
            return text
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        # Never reuse a number, so that a placeholder in the history keeps its meaning.
        self._count += 1
        name = f"[pasted {self._count}: {size}]"
        self._texts[name] = text
        while len(self._texts) > KEPT_MAX:
            del self._texts[next(iter(self._texts))]
        return name

    def restore(self, text: str) -> str:
        """Replace placeholders by their pastes."""
        return _PLACEHOLDER.sub(lambda match: self._texts.get(match[0], match[0]), text)
