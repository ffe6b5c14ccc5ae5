"""Recognise the words of a forgotten fact without storing them: by length, checksum and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from operator import sub

from msgspec import Struct

from everthread.domain.model import FORGOTTEN


class WordMark(Struct, frozen=True, array_like=True):
    """Length, checksum and hash of forgotten words. It recognises the words without containing them."""

    chars: int
    checksum: int
    """Sum of the characters' code points: a cheap test that most positions of a text fail."""
    identity: str
    """`fact_identity` of the words."""


def fact_identity(owner: str, text: str) -> str:
    """Return the hash by which a tombstone recognises a fact. Case and the amount of white space do not matter."""
    return hashlib.sha256(f"{owner}\0{' '.join(text.casefold().split())}".encode(errors="replace")).hexdigest()


def mark_of(owner: str, words: str) -> WordMark:
    return WordMark(len(words), sum(map(ord, words)), fact_identity(owner, words))


def erase_marked(text: str, owner: str, marks: Iterable[WordMark], *, whole_words: bool = False) -> str:
    """Replace marked words with `[forgotten]`, the longest first, because one may contain another.

    `whole_words` is for text that was written after the fact was forgotten: "tea" stays in "team".
    """
    for mark in sorted(marks, key=lambda mark: mark.chars, reverse=True):
        text = _erase(text, owner, mark, whole_words=whole_words)
    return text


def _erase(text: str, owner: str, mark: WordMark, *, whole_words: bool) -> str:
    pieces: list[str] = []
    end = 0
    for start in _candidates(text, mark):
        if start < end or (whole_words and _is_in_word(text, start, start + mark.chars)):
            continue
        if fact_identity(owner, text[start : start + mark.chars]) == mark.identity:
            pieces += text[end:start], FORGOTTEN
            end = start + mark.chars
    return "".join((*pieces, text[end:])) if pieces else text


def _is_in_word(text: str, start: int, end: int) -> bool:
    """Return whether a word begins before the range or ends after it."""
    # The letter of an escape such as `\n` belongs to no word.
    before = text[start - 1 : start] if text[max(start - 2, 0) : start - 1] != "\\" else ""
    return (_is_word(before) and _is_word(text[start])) or (_is_word(text[end : end + 1]) and _is_word(text[end - 1]))


def _is_word(char: str) -> bool:
    """Return whether it is a digit or a letter with case. Scripts without case often put no spaces between words."""
    return char.isdecimal() or char.islower() or char.isupper()


def _candidates(text: str, mark: WordMark) -> Iterator[int]:
    """Yield the positions at which text of the mark's length has its checksum."""
    if not 0 < mark.chars <= len(text):
        return
    sums = [0, *accumulate(map(ord, text))]
    windows = list(map(sub, sums[mark.chars :], sums))
    start = -1
    with suppress(ValueError):
        while True:
            start = windows.index(mark.checksum, start + 1)
            yield start
