"""Characters that come in halves: servers written in JavaScript count in half characters when they cut a text."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """As the decoder would have it, but half characters are let through: see `Halves`. Raises `ValueError`, or
    `RecursionError` for what is nested too deeply."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        # Only a string with a half character in it is refused for its escapes.
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
    return msgspec.convert(json.loads(data), decoder.type)


def joined(text: str) -> str:
    """The text with halves that belong together made one; a half that is alone is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Halves:
    """A text in pieces: the first half of a character is kept back until the second one comes."""

    def __init__(self) -> None:
        self._first = ""

    def add(self, piece: str) -> str:
        if not self._first and piece.isascii():
            return piece
        if not piece:
            return ""
        piece = self._first + piece
        self._first = ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._first = piece[:-1], piece[-1]
        return joined(piece)
