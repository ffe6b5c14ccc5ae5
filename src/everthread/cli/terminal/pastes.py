"""Long pastes: a word stands for each in the input line, because nobody edits a megabyte there."""

from __future__ import annotations

import re

PASTED_CHARS_MAX = 1_000
PASTED_LINES_MAX = 8
KEPT_MAX = 20
_STAND_IN = re.compile(r"\[pasted (\d+): [^\]]*\]")


class Pastes:
    """Those that were sent are kept for a while: what was typed can be brought back, and sent again."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._count = 0

    def stand_in(self, text: str) -> str:
        """What to put into the input for a paste: itself if it is short."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.rstrip("\n").count("\n") + 1
        if len(text) <= PASTED_CHARS_MAX and lines <= PASTED_LINES_MAX:
            return text
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        # No number is used twice, so that a name means what it meant when it was typed.
        self._count += 1
        name = f"[pasted {self._count}: {size}]"
        self._kept[name] = text
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return name

    def put_back(self, text: str) -> str:
        """The input with what its stand-ins stand for."""
        return _STAND_IN.sub(lambda match: self._kept.get(match[0], match[0]), text)
