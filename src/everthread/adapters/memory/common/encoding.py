"""Encode ids for services that allow only letters, digits, `_` and `-`, split texts that are too long for one, and
convert a memory with our metadata to a recall item.

Different ids stay different: every other character is escaped, and a long id is replaced by its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from everthread.ports.memory import RecallItem

CHARS_MAX = 80
SEPARATOR = "__"
"""Joins the parts of a name. No encoded id contains it."""

_PLAIN = re.compile(r"[A-Za-z0-9-]+")
_LOWER = re.compile(r"[a-z0-9-]+")
# No escape begins like this.
_HASHED = "_h"


def encode_id(text: str, chars_max: int = CHARS_MAX, *, lower: bool = False) -> str:
    """Encode an id; one longer than `chars_max` becomes its hash. The result is never empty.

    `lower` is for services that ignore the case of letters.
    """
    plain = _LOWER if lower else _PLAIN
    if plain.fullmatch(text):
        name = text
    else:
        name = "".join(chr(byte) if plain.fullmatch(chr(byte)) else f"_{byte:02x}" for byte in text.encode())
    if name and len(name) <= chars_max:
        return name
    return _HASHED + hashlib.sha256(text.encode()).hexdigest()[:40]


def decode_id(name: str) -> str | None:
    """Return the id that was encoded; None if only its hash is known."""
    if name.startswith(_HASHED):
        return None
    decoded = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), name.encode())
    return decoded.decode("utf-8", "replace")


def join_ids(*parts: str) -> str:
    return SEPARATOR.join(parts)


def recall_item(text: str, score: float, metadata: Mapping[str, Any]) -> RecallItem:
    """Convert a memory whose metadata name the session, the turn and the time that it comes from."""
    session, turn, at = (metadata.get(name) for name in ("session", "turn", "at"))
    return RecallItem(
        text,
        score,
        session_id=session if isinstance(session, str) else "",
        # A service may return an integer as a float.
        turn=int(turn) if isinstance(turn, int | float) else None,
        at=float(at) if isinstance(at, int | float) else None,
    )


def split_text(text: str, chars_max: int) -> tuple[str, ...]:
    """Split a text into pieces of at most `chars_max` characters, preferably after white space.

    Joined, the pieces are the text. A blank text has none.
    """
    if not text.strip():
        return ()
    pieces: list[str] = []
    begin = 0
    while len(text) - begin > chars_max:
        end = begin + chars_max
        # Look for white space in the last quarter only, so that no piece becomes much too short.
        space = max(text.rfind(" ", end - chars_max // 4, end), text.rfind("\n", end - chars_max // 4, end))
        end = space + 1 if space >= 0 else end
        pieces.append(text[begin:end])
        begin = end
    pieces.append(text[begin:])
    return tuple(pieces)
