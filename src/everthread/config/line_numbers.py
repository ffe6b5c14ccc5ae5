"""Where a key stands, in TOML and in JSON. Asked for only if there is something to complain about, or to change.

The text was read by a real parser before, so this one checks nothing: it looks for keys and for the ends of values.
Where it does not understand a text it stops, and knows the lines it has come across.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping

from msgspec import Struct, field

Keys = tuple[str | int, ...]
"""The way to a value from the top of a file: names of keys, and places in arrays."""

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


def line_in_toml(text: str, keys: Keys) -> int:
    """The line of that key; of the nearest one above it, if it is not there."""
    scan = _Scan(text)
    try:
        scan.document()
    except _Lost:
        # The complaint is made all the same, with the nearest line that was come across.
        pass
    return _nearest(scan.found, keys)


def line_in_json(text: str, keys: Keys) -> int:
    """The same in a JSON text."""
    scan = _Scan(text)
    try:
        scan.value(())
    except _Lost:
        # The complaint is made all the same, with the nearest line that was come across.
        pass
    return _nearest(scan.found, keys)


class Layout(Struct):
    """The places of a TOML text."""

    values: dict[Keys, tuple[int, int]] = field(default_factory=dict[Keys, tuple[int, int]])
    """Where each value begins and ends."""
    pairs: list[tuple[Keys, Keys, int]] = field(default_factory=list[tuple[Keys, Keys, int]])
    """Of each line with a value: the table it stands in, its key from the top, and where it ends."""
    tables: list[tuple[Keys, int, int]] = field(default_factory=list[tuple[Keys, int, int]])
    """Of each header: its keys, where it begins, and where the last line of its table ends."""


def layout_of_toml(text: str) -> Layout:
    scan = _Scan(text)
    try:
        scan.document()
    except _Lost:
        # Whoever changes the text by this reads the changed one with a real parser before it is kept.
        pass
    return scan.layout


def _nearest(found: Mapping[Keys, int], keys: Keys) -> int:
    for length in range(len(keys), 0, -1):
        if keys[:length] in found:
            return found[keys[:length]]
    return 1


class _Lost(Exception):
    """The text is not what it should be."""


class _Scan:
    def __init__(self, text: str) -> None:
        self.found: dict[Keys, int] = {}
        self.layout = Layout()
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._last: dict[Keys, int] = {}
        """For every array of tables, the place of its last table."""

    def document(self) -> None:
        """A whole TOML text."""
        table: Keys = ()
        layout = self.layout
        while (start := self._skip(_SPACE)) < len(self._text):
            pair: Keys = ()
            if self._take("[["):
                table = self._next_of(self._header())
            elif self._take("["):
                table = self._resolved(self._header())
                self._mark(table)
            else:
                pair = self._pair(table, 0)
            # A date may go on behind a blank, and what is left of the line is a comment.
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
        keys = self._resolved(self._dotted(), table)
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
            return _unquoted(quoted)
        bare = self._matched(_BARE_KEY)
        if not bare:
            raise _Lost
        return bare

    def _resolved(self, names: list[str], above: Keys = ()) -> Keys:
        """The way by these names; a name of an array of tables means its last one."""
        keys = above
        for name in names:
            keys = (*keys, name)
            if keys in self._last:
                keys = (*keys, self._last[keys])
        return keys

    def _next_of(self, names: list[str]) -> Keys:
        array = (*self._resolved(names[:-1]), names[-1])
        place = self._last[array] = self._last.get(array, -1) + 1
        self._mark((*array, place))
        return (*array, place)

    def _mark(self, keys: Keys) -> None:
        """This is the line of that key, and of those above it that were on no line yet."""
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


def _unquoted(quoted: str) -> str:
    if "\\" not in quoted or quoted[0] == "'":
        return quoted[1:-1]
    try:
        return str(json.loads(quoted))
    except ValueError:
        # TOML knows more escapes than JSON, and strings over several lines.
        pass
    try:
        return str(tomllib.loads(f"key = {quoted}")["key"])
    except ValueError as error:
        raise _Lost from error
