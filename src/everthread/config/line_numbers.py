"""Find the line of a key in TOML and JSON, for error messages and for `edit`.

A real parser has read the text before, so this scanner checks nothing: it looks for keys and for the ends of values.
It stops at text that it can't scan, and keeps the lines found before.
"""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress

from msgspec import Struct, field

Keys = tuple[str | int, ...]
"""Path of a value from the top of a file: key names and array indexes."""

_DEPTH_MAX = 64
_BLANKS = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_REST = re.compile(r"[^\n]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^\s,\[\]{}#\"'][^,\[\]{}#\"'\n]*")


def line_of_key(text: str, keys: Keys, *, json: bool = False) -> int:
    """Return the line of a key in a TOML or JSON text, or of its nearest parent if it is missing."""
    found = _scan(text, json=json).found
    return next((found[keys[:length]] for length in range(len(keys), 0, -1) if keys[:length] in found), 1)


class Layout(Struct):
    """Offsets of the values, lines and tables in a TOML text."""

    values: dict[Keys, tuple[int, int]] = field(default_factory=dict[Keys, tuple[int, int]])
    """Start and end of each value."""
    pairs: list[tuple[Keys, Keys, int]] = field(default_factory=list[tuple[Keys, Keys, int]])
    """For each key-value line: its table, its path from the top, and its end."""
    tables: list[tuple[Keys, int, int]] = field(default_factory=list[tuple[Keys, int, int]])
    """For each header: its path, its start, and the end of the last line of its table."""


def layout_of_toml(text: str) -> Layout:
    return _scan(text).layout


def _scan(text: str, *, json: bool = False) -> _Scan:
    """Scan a text as far as possible.

    A partial result is safe: an error message needs only the nearest line, and `edit` parses the changed text before it
    is written.
    """
    scan = _Scan(text)
    with suppress(_Lost):
        scan.value(()) if json else scan.document()
    return scan


class _Lost(Exception):
    """The scanner can't continue."""


class _Scan:
    def __init__(self, text: str) -> None:
        self.found: dict[Keys, int] = {}
        self.layout = Layout()
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._last: dict[Keys, int] = {}
        """Index of the last table of each array of tables."""

    def document(self) -> None:
        """Scan a whole TOML text."""
        table: Keys = ()
        layout = self.layout
        while (start := self._skip(_SPACE)) < len(self._text):
            pair: Keys = ()
            if self._take("[["):
                table = self._next_of(self._header())
            elif self._take("["):
                table = self._resolve(self._header())
                self._mark(table)
            else:
                pair = self._pair(table, 0)
            # The rest of the line is a comment, or the time of a date that is written with a blank.
            end = self._skip(_REST)
            if pair:
                layout.pairs.append((table, pair, end))
                if layout.tables:
                    layout.tables[-1] = (*layout.tables[-1][:2], end)
            else:
                layout.tables.append((table, start, end))

    def value(self, keys: Keys, depth: int = 0) -> None:
        if depth > _DEPTH_MAX:
            raise _Lost
        self._skip(_SPACE)
        if self._take("["):
            self._array(keys, depth)
        elif self._take("{"):
            self._inline_table(keys, depth)
        elif not self._matched(_STRING) and not self._matched(_ATOM):
            raise _Lost

    def _array(self, keys: Keys, depth: int) -> None:
        place = 0
        while self._skip(_SPACE) < len(self._text) and not self._take("]"):
            self._mark((*keys, place))
            self.value((*keys, place), depth + 1)
            self._skip(_SPACE)
            self._take(",")
            place += 1

    def _inline_table(self, keys: Keys, depth: int) -> None:
        while self._skip(_SPACE) < len(self._text) and not self._take("}"):
            self._pair(keys, depth + 1)
            self._skip(_SPACE)
            self._take(",")

    def _pair(self, table: Keys, depth: int) -> Keys:
        keys = self._resolve(self._dotted(), table)
        self._mark(keys)
        self._skip(_SPACE)
        if not self._take("=") and not self._take(":"):
            raise _Lost
        start = self._skip(_SPACE)
        self.value(keys, depth)
        self.layout.values[keys] = (start, start + len(self._text[start : self._at].rstrip()))
        return keys

    def _header(self) -> list[str]:
        self._skip(_BLANKS)
        return self._dotted()

    def _dotted(self) -> list[str]:
        keys = [self._key()]
        while self._skip(_BLANKS) < len(self._text) and self._take("."):
            self._skip(_BLANKS)
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        quoted = self._matched(_STRING)
        if quoted:
            return _unquote(quoted)
        bare = self._matched(_BARE_KEY)
        if not bare:
            raise _Lost
        return bare

    def _resolve(self, names: list[str], above: Keys = ()) -> Keys:
        """Return the path of these names. The name of an array of tables means its last table."""
        keys = above
        for name in names:
            keys = (*keys, name)
            if keys in self._last:
                keys = (*keys, self._last[keys])
        return keys

    def _next_of(self, names: list[str]) -> Keys:
        array = (*self._resolve(names[:-1]), names[-1])
        place = self._last[array] = self._last.get(array, -1) + 1
        self._mark((*array, place))
        return (*array, place)

    def _mark(self, keys: Keys) -> None:
        """Record the current line for a key, and for its parents that have none yet."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self.found[keys] = self._line
        for length in range(1, len(keys)):
            self.found.setdefault(keys[:length], self._line)

    def _skip(self, what: re.Pattern[str]) -> int:
        self._matched(what)
        return self._at

    def _take(self, what: str) -> bool:
        if not self._text.startswith(what, self._at):
            return False
        self._at += len(what)
        return True

    def _matched(self, what: re.Pattern[str]) -> str:
        match = what.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]


def _unquote(quoted: str) -> str:
    if "\\" not in quoted or quoted[0] == "'":
        return quoted[1:-1]
    try:
        return str(json.loads(quoted))
    except ValueError:
        # TOML has more escapes than JSON, and multi-line strings.
        pass
    try:
        return str(tomllib.loads(f"key = {quoted}")["key"])
    except ValueError as error:
        raise _Lost from error
