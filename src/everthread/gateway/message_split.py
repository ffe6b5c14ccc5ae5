"""Split long replies into messages: at paragraphs, lines or words, and never with an open code fence."""

from __future__ import annotations

import re

from everthread.ports.platform import Capabilities

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_LIKE_A_FENCE = re.compile(r" {0,3}(?:`{3}|~{3})")
_SMALLEST = 64


def chars_that_fit(able: Capabilities, text: str, less: int = 0) -> int:
    """Return how many characters of a text fit into one message with `less` units to spare."""
    return _fitting(text, able.text_chars_max - less) if able.counts_utf16 else able.text_chars_max - less


def _fitting(text: str, units_max: int) -> int:
    """Return how many leading characters fit into `units_max` UTF-16 units; `units_max` if the text is shorter."""
    begun = text[:units_max]
    if begun.isascii() or len(units := begun.encode("utf-16-le", "surrogatepass")) <= 2 * units_max:
        return units_max
    return len(units[: 2 * units_max].decode("utf-16-le", "ignore"))


def split_for(text: str, able: Capabilities) -> list[str]:
    """Split a text by the limits of a platform."""
    return split(text, able.text_chars_max, utf16=able.counts_utf16)


def split(text: str, chars_max: int, *, utf16: bool = False) -> list[str]:
    """Split a text into parts of at most `chars_max`: at least one, and none blank unless it is the only one.

    With `utf16`, a character outside the basic plane counts as two. A code block that must be cut is closed in one part
    and opened again, in its language, in the next.
    """
    if chars_max < _SMALLEST:
        raise ValueError(f"a part has at least {_SMALLEST} characters")
    parts: list[str] = []
    rest = text.strip("\n")
    while len(rest) > (room := _fitting(rest, chars_max) if utf16 else chars_max):
        part, rest = _cut(rest, room)
        if part.strip():
            parts.append(part)
    return [*parts, rest] if rest.strip() or not parts else parts


def _cut(text: str, chars_max: int) -> tuple[str, str]:
    room = _cut_at(text, chars_max)
    opening = _open_fence(text[:room])
    if opening is None or not _opens(text, opening, chars_max):
        return text[:room].rstrip(), text[room:].lstrip("\n")
    mark, start = opening.group(1), opening.start()
    # The repeated opening line must leave room for code, or the split would never end.
    again = opening.group(0).strip() if len(opening.group(0)) <= chars_max // 4 else mark
    if start > 0 and text[:start].strip() and len(text[:start]) >= chars_max // 4:
        # Move the whole block to the next part.
        return text[:start].rstrip(), text[start:]
    # Leave room for the closing fence.
    room = _cut_at(text, chars_max - len(mark) - 1)
    head = text[:room].rstrip("\n")
    if len(head) <= opening.end():
        # Nothing but the opening line would fit: cut inside the first line of code.
        head, room = text[: chars_max - len(mark) - 1], chars_max - len(mark) - 1
    return f"{head}\n{mark}", f"{again}\n{text[room:].lstrip(chr(10))}"


def _cut_at(text: str, chars_max: int) -> int:
    """Find the cut: after the last paragraph, line or word in the second half; else anywhere.

    Never where the next part would begin with characters that look like a fence.
    """
    window, least = text[:chars_max], chars_max // 2
    for mark in ("\n\n", "\n", " "):
        found = window.rfind(mark)
        while mark == " " and found >= least and _LIKE_A_FENCE.match(text, found + 1):
            found = window.rfind(mark, 0, found)
        if found >= least:
            return found + len(mark)
    place = chars_max
    while place > least and _LIKE_A_FENCE.match(text, place):
        place -= 1
    return place


def _opens(text: str, opening: re.Match[str], chars_max: int) -> bool:
    """Return true if it is a fence in the whole text too: a truncated line may only look like one."""
    cut_short = opening.end() < len(text) and text[opening.end()] != "\n"
    return not cut_short and len(opening.group(1)) <= chars_max // 8


def _open_fence(text: str) -> re.Match[str] | None:
    """Return the fence that is still open at the end of a text."""
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match.group(1)[0] == opened.group(1)[0] and len(match.group(1)) >= len(opened.group(1)):
            opened = None if not match.group(2).strip() else opened
    return opened
