"""Texts that are longer than a back end takes, in pieces that it does."""

from __future__ import annotations


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
