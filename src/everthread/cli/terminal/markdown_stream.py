"""Split streamed Markdown into finished blocks, which can be printed, and a rest that may still change."""

from __future__ import annotations

import re

LINES_MAX = 400
"""Maximum lines of a block; a longer one is split."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)])\s")


class MarkdownStream:
    """Collects streamed text and returns the blocks that later text cannot change."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        """The fence that opened the current code block."""
        self._gap = False
        """An empty line follows `_lines`. The next line decides if the block is finished."""

    @property
    def rest(self) -> str:
        """The unfinished text."""
        return "\n".join([*self._lines, self._partial] if self._partial else self._lines)

    @property
    def in_code(self) -> bool:
        return bool(self._fence)

    def feed(self, text: str) -> list[str]:
        """Add text and return the blocks that it finishes."""
        *lines, self._partial = (self._partial + text).split("\n")
        return [block for line in lines for block in self._line(line)]

    def end(self) -> list[str]:
        """End the stream and return the remaining blocks."""
        left = self._line(self._partial) if self._partial else []
        self._partial = ""
        return [*left, *self._take()]

    def _line(self, line: str) -> list[str]:
        if self._fence:
            self._lines.append(line)
            if _closes(line, self._fence):
                self._fence = ""
                return [] if self._is_list() else self._take()
            return self._cut_code() if len(self._lines) >= LINES_MAX else []
        if not line.strip():
            self._gap = bool(self._lines)
            return []
        finished = self._take() if self._starts_block(line) else []
        if self._gap:
            self._lines.append("")
            self._gap = False
        if fence := _FENCE.match(line):
            self._fence = fence[1]
        self._lines.append(line)
        if _HEADING.match(line) or (len(self._lines) >= LINES_MAX and not self._fence):
            finished += self._take()
        return finished

    def _starts_block(self, line: str) -> bool:
        if not self._lines:
            return False
        if self._is_list():
            # A list item, or an indented line, continues the list even after an empty line.
            return self._gap and not line[0].isspace() and not _ITEM.match(line)
        return self._gap or bool(_FENCE.match(line) or _HEADING.match(line))

    def _is_list(self) -> bool:
        return bool(self._lines and _ITEM.match(self._lines[0]))

    def _cut_code(self) -> list[str]:
        opening, fence = self._lines[0], self._fence
        if not _FENCE.match(opening):
            return []
        whole = "\n".join([*self._lines, fence])
        self._lines = [opening]
        return [whole]

    def _take(self) -> list[str]:
        lines, self._lines, self._gap, self._fence = self._lines, [], False, ""
        return ["\n".join(lines)] if lines else []


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}
