"""Find the line of a key in TOML and JSON, for error messages and for `edit`.

A real parser has read the text before, so this scanner checks nothing: it looks for keys and for the ends of values.
It stops at text that it can't scan, and keeps the keys found before. That is safe: an error message needs only the
nearest line, and `edit` parses the changed text before it is written.
"""

from __future__ import annotations

import json
import re
import tomllib

from msgspec import Struct

Keys = tuple[str | int, ...]
"""Path of a value from the top of a file: key names and array indexes."""

_DEPTH_MAX = 64
_TOKEN = re.compile(
    r"(?P<newline>\r?\n)|(?P<blank>[ \t]+|\r|#[^\r\n]*)|"
    r"(?P<name>[A-Za-z0-9_-]+"
    r'|"""(?:[^\\]|\\.)*?""""{0,2}'
    r"|'''.*?''''{0,2}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*')"
    r"|.",
    re.DOTALL,
)


def line_of_key(text: str, keys: Keys, *, json: bool = False) -> int:
    """Return the line of a key in a TOML or JSON text, or of its nearest parent if it is missing."""
    found = Layout(text, json=json).keys
    start = next((found[keys[:length]] for length in range(len(keys), 0, -1) if keys[:length] in found), 0)
    return text.count("\n", 0, start) + 1


class Statement(Struct, frozen=True):
    """A key-value pair or a table header of a TOML text."""

    table: Keys
    keys: Keys
    """Path of the pair from the top; empty for a header."""
    start: int
    end: int
    """End of its last line."""


class Layout:
    """Offsets of the keys, values and statements in a text."""

    def __init__(self, text: str, *, json: bool = False) -> None:
        self.keys: dict[Keys, int] = {}
        """Start of each key, array item and table header."""
        self.values: dict[Keys, tuple[int, int]] = {}
        """Start and end of each value."""
        self.statements: list[Statement] = []
        self._json = json
        self._table: Keys = ()
        self._last: dict[Keys, int] = {}
        """Index of the last table of each array of tables."""
        # The open brackets: the path of each, and the next index; None in a table. A JSON text has no statements, so
        # it is in a bracket from the start.
        self._open: list[tuple[Keys, int | None]] = [((), None)] if json else []
        self._path: Keys = ()
        self._names: list[str] = []
        self._brackets = self._start = 0
        self._read = self._read_value if json else self._read_key
        try:
            for token in _TOKEN.finditer(text):
                if token["newline"] and not self._open:
                    self._end_statement(token.start())
                elif not token["newline"] and not token["blank"]:
                    self._read(token)
            if not self._open:
                self._end_statement(len(text))
        except ValueError:
            pass

    def _end_statement(self, end: int) -> None:
        if self._brackets:
            self._table = self._resolve(self._names, (), new_item=self._brackets > 1)
            self._mark(self._table)
        if self._brackets or self._path:
            self.statements.append(Statement(self._table, self._path, self._start, end))
        self._path, self._names, self._brackets, self._read = (), [], 0, self._read_key

    def _read_key(self, token: re.Match[str]) -> None:
        """Read a part of a dotted key or of a table header."""
        if not self._names and not self._brackets:
            self._start = token.start()
        if token["name"]:
            self._names.append(self._unquote(token[0]))
        elif token[0] in "=:":
            self._path = self._resolve(self._names, self._open[-1][0] if self._open else self._table)
            self._mark(self._path)
            self._names, self._read = [], self._read_value
        elif token[0] == "[" and not self._open:
            self._brackets += 1
        elif token[0] == "}":
            self._read_value(token)
        elif token[0] not in ".]":
            raise ValueError

    def _read_item(self, token: re.Match[str]) -> None:
        """Read the first token of an array item, or the end of the array."""
        above, index = self._open[-1]
        if token[0] != "]" and index is not None:
            self._open[-1] = (above, index + 1)
            self._path, self._start = (*above, index), token.start()
            self._mark(self._path)
        self._read_value(token)

    def _read_value(self, token: re.Match[str]) -> None:
        self._read = self._read_value
        if token[0] == "," and self._open:
            self._read = self._read_key if self._open[-1][1] is None else self._read_item
            return
        if token[0] in "]}":
            if not self._open:
                raise ValueError
            self._path, _ = self._open.pop()
        self.values[self._path] = (self.values.get(self._path, (token.start(),))[0], token.end())
        if token[0] in "[{":
            if len(self._open) > _DEPTH_MAX:
                raise ValueError
            self._open.append((self._path, 0 if token[0] == "[" else None))
            self._read = self._read_item if token[0] == "[" else self._read_key

    def _resolve(self, names: list[str], above: Keys, *, new_item: bool = False) -> Keys:
        """Return the path of these names. The name of an array of tables means its last table."""
        path = above
        for number, name in enumerate(names, 1):
            path = (*path, name)
            if new_item and number == len(names):
                self._last[path] = self._last.get(path, -1) + 1
            if path in self._last:
                path = (*path, self._last[path])
        return path

    def _mark(self, path: Keys) -> None:
        """Record the start of a key, and of its parents that have none yet."""
        self.keys[path] = self._start
        for length in range(1, len(path)):
            self.keys.setdefault(path[:length], self._start)

    def _unquote(self, name: str) -> str:
        if name[0] not in "\"'":
            return name
        return str(json.loads(name) if self._json else tomllib.loads(f"name = {name}")["name"])
