"""Stand-ins for long pastes, which are impractical to edit in the input line."""

from __future__ import annotations

import re

PASTED_CHARS_MAX = 1_000
PASTED_LINES_MAX = 8
KEPT_MAX = 20
_STAND_IN = re.compile(r"\[pasted (\d+): [^\]]*\]")


class Pastes:
    """Keeps the last `KEPT_MAX` long pastes, so that a message from the history can be sent again."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._count = 0

    def stand_in(self, text: str) -> str:
        """Return the text to insert for a paste: a stand-in if it is long, else the paste itself."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.rstrip("\n").count("\n") + 1
        if len(text) <= PASTED_CHARS_MAX and lines <= PASTED_LINES_MAX:
            return text
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        # Never reuse a number, so that a stand-in in the history keeps its meaning.
        self._count += 1
        name = f"[pasted {self._count}: {size}]"
        self._kept[name] = text
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return name

    def put_back(self, text: str) -> str:
        """Replace stand-ins by their pastes."""
        return _STAND_IN.sub(lambda match: self._kept.get(match[0], match[0]), text)
