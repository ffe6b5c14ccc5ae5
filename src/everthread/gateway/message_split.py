"""Long replies in parts that a platform takes: at paragraphs, lines or words, and never with a code fence left open."""

from __future__ import annotations

import re

from everthread.ports.platform import Capabilities

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_LIKE_A_FENCE = re.compile(r" {0,3}(?:`{3}|~{3})")
_SMALLEST = 64


def room_of(able: Capabilities, text: str, less: int = 0) -> int:
    """How many characters of a text a message of that platform can begin with, if that and so much more is to fit."""
    return _fitting(text, able.text_chars_max - less) if able.counts_utf16 else able.text_chars_max - less


def _fitting(text: str, units_max: int) -> int:
    """How many of its first characters are at most so many units of UTF-16; as many as that, if it is shorter."""
    begun = text[:units_max]
    if begun.isascii() or len(units := begun.encode("utf-16-le", "surrogatepass")) <= 2 * units_max:
        return units_max
    return len(units[: 2 * units_max].decode("utf-16-le", "ignore"))


def parts_of(text: str, able: Capabilities) -> list[str]:
    """The parts of a text that a platform takes."""
    return split(text, able.text_chars_max, utf16=able.counts_utf16)


def split(text: str, chars_max: int, *, utf16: bool = False) -> list[str]:
    """The parts of a text, each at most that long; at least one, and none of them blank but that one.

    With `utf16`, a character outside the basic plane counts as two. A code block that must be cut is closed in the one
    part and opened again, in its language, in the next.
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
    room = _place(text, chars_max)
    opening = _open_fence(text[:room])
    if opening is None or not _opens(text, opening, chars_max):
        return text[:room].rstrip(), text[room:].lstrip("\n")
    mark, start = opening.group(1), opening.start()
    # What opens the block again must leave room for what goes on in it, or the text would never come to an end.
    again = opening.group(0).strip() if len(opening.group(0)) <= chars_max // 4 else mark
    if start > 0 and text[:start].strip() and len(text[:start]) >= chars_max // 4:
        # The block goes whole into the next part, if it fits there.
        return text[:start].rstrip(), text[start:]
    # Made smaller by what closes it.
    room = _place(text, chars_max - len(mark) - 1)
    head = text[:room].rstrip("\n")
    if len(head) <= opening.end():
        # Only the opening line would be left: cut inside the first line of the code.
        head, room = text[: chars_max - len(mark) - 1], chars_max - len(mark) - 1
    return f"{head}\n{mark}", f"{again}\n{text[room:].lstrip(chr(10))}"


def _place(text: str, chars_max: int) -> int:
    """Where to cut: after a paragraph, a line or a word, whichever is last in the second half; else anywhere.

    Not within a line where the next part would begin with what looks like a fence there, and was none.
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
    """Whether it is a fence in the whole text as well: a line that was cut short may only look like one."""
    cut_short = opening.end() < len(text) and text[opening.end()] != "\n"
    return not cut_short and len(opening.group(1)) <= chars_max // 8


def _open_fence(text: str) -> re.Match[str] | None:
    """The fence that is open at the end of a text."""
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match.group(1)[0] == opened.group(1)[0] and len(match.group(1)) >= len(opened.group(1)):
            opened = None if not match.group(2).strip() else opened
    return opened
