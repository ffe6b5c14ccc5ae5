"""Find forgotten words in a text, as whole words: "tea" is not found in "team". No other module compares them.

The words are given as text while they are being forgotten. Later they are recognised by marks, which do not contain
them: length, checksum and hash.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.domain.model import FORGOTTEN

if TYPE_CHECKING:
    from mmap import mmap

Span = tuple[int, int]
Mark = tuple[str, "WordMark"]
"""A mark with the owner of the words."""

_HEX = "[0-9A-Fa-f]"
_TERMINAL = r"(?:\[[0-<>?]{0,48} ?[A-Za-z]|[()][0-9A-Z])"
_ESCAPE = re.compile(
    rf"\x1b(?:{_TERMINAL}|[0-9A-Za-z])|\^\[{_TERMINAL}|\\(?:(?:x1[Bb]|u001[Bb]|033|e){_TERMINAL}"
    rf"|[0abfnrtv]|[1-3][0-7]{{2}}|x{_HEX}{{2}}|u{_HEX}{{4}}|U{_HEX}{{8}})|%{_HEX}{{2}}|={_HEX}{{2}}"
)
"""An escape of JSON, source code, URLs or quoted-printable, or a terminal's control sequence, itself escaped or not.

Its letters and digits belong to no word. Text that only looks like an escape counts as one: in doubt, words are erased.
Each alternative begins with a single character, by which `re` skips other text quickly.
"""
_ESCAPE_CHARS_MAX = 64
_BINARY_SAMPLE = 8_192
_COST_OF_A_CHAR = 10
"""Preparing the search takes as long as this many lengths."""


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


# --- Words as text ---------------------------------------------------------------------------------------------------


def erase_words(text: str, forms: Iterable[str]) -> str:
    """Replace the words with `[forgotten]`, form by form: give the longest first, because one may contain another."""
    for form in forms:
        text = replace_spans(text, [(start, start + len(form)) for start in _find(text, form)])
    return text


def contains_words(text: str, forms: Iterable[str]) -> bool:
    """Return whether the text contains one of the forms."""
    return any(next(_find(text, form), None) is not None for form in forms)


def bytes_contain_words(content: bytes | mmap, forms: Iterable[str]) -> bool:
    """Return whether UTF-8 text contains one of the forms.

    In binary data, recognised by a zero byte, a letter beside the words may be the length of a string. So the words
    are found inside words too.
    """
    is_binary = b"\0" in content[:_BINARY_SAMPLE]
    for form in forms:
        wanted = form.encode(errors="replace")
        start = content.find(wanted) if wanted else -1
        while start >= 0:
            end = start + len(wanted)
            before = content[max(start - _ESCAPE_CHARS_MAX, 0) : start].decode(errors="replace")
            after = content[end : end + 4].decode(errors="replace")
            text = f"{before}{form}{after}"
            if is_binary or _are_boundaries(text, len(before), len(before) + len(form), _escape_ends(text)):
                return True
            start = content.find(wanted, start + 1)
    return False


def _find(text: str, form: str) -> Iterator[int]:
    """Yield the positions of a form that do not overlap."""
    start = text.find(form) if form else -1
    escape_ends = _escape_ends(text) if start >= 0 else frozenset[int]()
    while start >= 0:
        end = start + len(form)
        whole = _are_boundaries(text, start, end, escape_ends)
        if whole:
            yield start
        start = text.find(form, end if whole else start + 1)


def replace_spans(text: str, spans: Sequence[Span]) -> str:
    """Replace parts of the text, in order, with `[forgotten]`."""
    if not spans:
        return text
    pieces: list[str] = []
    last = 0
    for start, end in spans:
        pieces += text[last:start], FORGOTTEN
        last = end
    return "".join((*pieces, text[last:]))


# --- The rule --------------------------------------------------------------------------------------------------------


class _WordChars(dict[str, int]):
    """1 for characters that continue a word, otherwise 0: digits, letters with case, and their accents.

    Scripts without case often put no spaces between words, so none of their characters continues a word.
    """

    def __missing__(self, char: str) -> int:
        found = int(char.isdecimal() or char.islower() or char.isupper() or "\u0300" <= char <= "\u036f")
        self[char] = found
        return found


_WORD_CHARS = _WordChars()


def _are_boundaries(text: str, start: int, end: int, escape_ends: frozenset[int]) -> bool:
    if start > 0 and _WORD_CHARS[text[start - 1]] and _WORD_CHARS[text[start]] and start not in escape_ends:
        return False
    return not (end < len(text) and _WORD_CHARS[text[end - 1]] and _WORD_CHARS[text[end]]) or end in escape_ends


def _escape_ends(text: str) -> frozenset[int]:
    return frozenset(match.end() for match in _ESCAPE.finditer(text))


def _boundaries(text: str) -> int:
    """Return a number with a byte for each position of the text, at its end too: 1 where a word may begin or end."""
    word_chars = int.from_bytes(bytes(map(_WORD_CHARS.__getitem__, text)), "little")
    inside = word_chars & (word_chars << 8)
    found = bytearray((_ones(len(text) + 1) ^ inside).to_bytes(len(text) + 1, "little"))
    for end in _escape_ends(text):
        found[end] = 1
    return int.from_bytes(found, "little")


def _ones(count: int) -> int:
    return int.from_bytes(b"\1" * count, "little")


# --- Words as marks --------------------------------------------------------------------------------------------------


class _SameLength:
    """The marks of one length."""

    def __init__(self) -> None:
        self.checksums: set[int] = set()
        self.marks: dict[str, Mark] = {}
        self.owners: set[str] = set()

    def add(self, mark: Mark) -> None:
        owner, words = mark
        self.checksums.add(words.checksum)
        self.marks[words.identity] = mark
        self.owners.add(owner)

    def recognise(self, text: str) -> Mark | None:
        found = (self.marks.get(fact_identity(owner, text)) for owner in self.owners)
        return next((mark for mark in found if mark is not None), None)


class ForgottenWords:
    """Marks of forgotten words, which are searched for in one pass for each length that they have.

    A pass compares checksums at all positions at once, with arithmetic on numbers that have a byte for each position.
    Only positions are hashed where the checksum agrees and whole words stand.
    """

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._by_length: defaultdict[int, _SameLength] = defaultdict(_SameLength)
        for mark in marks:
            if mark[1].chars > 0:
                self._by_length[mark[1].chars].add(mark)

    @classmethod
    def of(cls, owner: str, marks: Iterable[WordMark]) -> ForgottenWords:
        return cls((owner, mark) for mark in marks)

    def cost(self, text: str) -> int:
        """Return a measure of the time that `find` takes; a million is some 30 ms."""
        return len(text) * (_COST_OF_A_CHAR + len(self._by_length)) if self._by_length else 0

    def find(self, text: str, *, overlapping: bool = False) -> dict[Span, Mark]:
        """Return where which words are. Where some overlap, the longest are returned, or all with `overlapping`."""
        lengths = sorted((chars for chars in self._by_length if chars <= len(text)), reverse=True)
        if not lengths:
            return {}
        sums, found, taken = [0, *accumulate(map(ord, text))], dict[Span, Mark](), list[Span]()
        low_bits = int.from_bytes(bytes([total & 127 for total in sums]), "little")
        high_bit, boundaries = _ones(len(sums)) << 7, _boundaries(text)
        for chars in lengths:
            marks = self._by_length[chars]
            # Each byte is the difference of two sums. The high bit keeps it from borrowing from the next byte.
            differences = (low_bits >> 8 * chars | high_bit) - low_bits
            agreeing = int.from_bytes(differences.to_bytes(len(sums), "little").translate(_table(marks)), "little")
            candidates = (agreeing & boundaries & boundaries >> 8 * chars).to_bytes(len(sums), "little")
            start = candidates.find(1)
            while start >= 0:
                span = start, start + chars
                agrees = sums[span[1]] - sums[start] in marks.checksums
                if agrees and (overlapping or not _overlaps(taken, span)):
                    mark = marks.recognise(text[start : span[1]])
                    if mark is not None:
                        found[span] = mark
                        insort(taken, span)
                start = candidates.find(1, start + 1)
        return found

    def erase(self, text: str) -> str:
        """Replace the words with `[forgotten]`."""
        return replace_spans(text, sorted(self.find(text)))


def _table(marks: _SameLength) -> bytes:
    """Return the translation table that maps the checksums, without their higher bits, to 1."""
    table = bytearray(256)
    for checksum in marks.checksums:
        table[checksum & 127] = table[checksum & 127 | 128] = 1
    return bytes(table)


def _overlaps(taken: list[Span], span: Span) -> bool:
    at = bisect(taken, span)
    return (at > 0 and taken[at - 1][1] > span[0]) or (at < len(taken) and taken[at][0] < span[1])
