"""Our ids as back ends take them: letters, digits, `_` and `-`, and told apart whatever they hold.

Texts that are longer than a back end takes, in pieces that it does.
"""

from __future__ import annotations

import hashlib
import re

CHARS_MAX = 80
PAUSE = "__"
"""Stands between the parts of a name. No encoded part has it in it."""

_PLAIN = re.compile(r"[A-Za-z0-9-]+")
_LOW = re.compile(r"[a-z0-9-]+")
# No escape begins like this.
_HASHED = "_h"


def encoded(text: str, chars_max: int = CHARS_MAX, *, low: bool = False) -> str:
    """The text in the characters that are allowed; a long one becomes its hash. Never empty.

    `low` is for back ends that make no difference between capital and small letters.
    """
    plain = _LOW if low else _PLAIN
    if plain.fullmatch(text):
        found = text
    else:
        found = "".join(chr(byte) if plain.fullmatch(chr(byte)) else f"_{byte:02x}" for byte in text.encode())
    if found and len(found) <= chars_max:
        return found
    return _HASHED + hashlib.sha256(text.encode()).hexdigest()[:40]


def decoded(name: str) -> str | None:
    """What was encoded, unless it was too long to be told from its name."""
    if name.startswith(_HASHED):
        return None
    whole = re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), name.encode())
    return whole.decode("utf-8", "replace")


def named(*parts: str) -> str:
    return PAUSE.join(parts)


def split(text: str, chars_max: int) -> tuple[str, ...]:
    """The text in order, in pieces of at most so many characters, cut behind white space where there is some.

    Joined, the pieces are the text. A text of nothing but white space has none.
    """
    if not text.strip():
        return ()
    pieces: list[str] = []
    begin = 0
    while len(text) - begin > chars_max:
        end = begin + chars_max
        # A cut near the end of the piece: a word is not worth half of it.
        space = max(text.rfind(" ", end - chars_max // 4, end), text.rfind("\n", end - chars_max // 4, end))
        end = space + 1 if space >= 0 else end
        pieces.append(text[begin:end])
        begin = end
    pieces.append(text[begin:])
    return tuple(pieces)
