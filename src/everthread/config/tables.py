"""Configuration files as text and as tables, whose every complaint names the file and the line."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from everthread.domain.errors import BadConfig

if TYPE_CHECKING:
    from everthread.config.line_numbers import Keys

BYTES_MAX = 1_000_000
TEXT_CHARS_MAX = 4096

Check = Callable[[str], str]
"""What is wrong with a text and what to do about it; empty if nothing is."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_AT_END = " (at end of document)"


def text_of(file: Path) -> str | None:
    """What the file says; None if there is none. Raises `BadConfig` if it can't be read, or is no text."""
    try:
        # Opening a pipe would wait for somebody to write to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise BadConfig(f"{file}: is no regular file; put a text file there, or remove it")
        with file.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadConfig(f"{file}: {error.strerror}; make it readable for you, or remove it") from error
    if len(content) > BYTES_MAX:
        raise BadConfig(f"{file}: has more than {BYTES_MAX} bytes; this is hardly a configuration, shorten it")
    if b"\0" in content:
        raise BadConfig(f"{file}:{_line_at(content, content.index(0))}: is no text file; write it anew, in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = _line_at(error.object, error.start)
        raise BadConfig(f"{file}:{line}: is not in UTF-8; save it in that encoding") from error


def _line_at(content: bytes, at: int) -> int:
    return content.count(b"\n", 0, at) + 1


class Mistake(BadConfig):
    """What is wrong with one key of a file."""

    def __init__(self, where: str, what: str, keys: Keys) -> None:
        super().__init__(f"{where}: {what}")
        self.what = what
        self.keys = keys


class Source(Struct, frozen=True):
    """A file that was read, and how to find a line of it again."""

    file: Path
    text: str
    line_of: Callable[[str, Keys], int]

    def error(self, keys: Keys, what: str) -> BadConfig:
        return Mistake(f"{self.file}:{self.line_of(self.text, keys)}", what, keys)


def toml(file: Path, text: str) -> tuple[Source, dict[str, Any]]:
    import tomllib  # noqa: PLC0415 - many homes have no such file

    try:
        return Source(file, text, _line_in_toml), tomllib.loads(text)
    except RecursionError as error:
        raise BadConfig(f"{file}: is nested too deeply; no setting needs that") from error
    except ValueError as error:
        raise BadConfig(_toml_problem(file, text, str(error))) from error


def json(file: Path, text: str) -> tuple[Source, dict[str, Any]]:
    import json  # noqa: PLC0415 - as above

    try:
        values: object = json.loads(text)
    except RecursionError as error:
        raise BadConfig(f"{file}: is nested too deeply; no setting needs that") from error
    except json.JSONDecodeError as error:
        raise BadConfig(f"{file}:{error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise BadConfig(f"{file}: {error}") from error
    if not isinstance(values, dict):
        raise BadConfig(f"{file}:1: expected an object with the key 'mcpServers', found {kind_of(values)}")
    return Source(file, text, _line_in_json), cast("dict[str, Any]", values)


def _toml_problem(file: Path, text: str, said: str) -> str:
    at_line = _AT_LINE.search(said)
    if at_line:
        return f"{file}:{at_line[1]}: {said[: at_line.start()]}"
    if said.endswith(_AT_END):
        lines = text.rstrip("\n").count("\n") + 1
        return f"{file}:{lines}: {said.removesuffix(_AT_END)}, at the end of the file"
    return f"{file}: {said}"


def _line_in_toml(text: str, keys: Keys) -> int:
    from everthread.config.line_numbers import line_in_toml  # noqa: PLC0415 - only for complaints

    return line_in_toml(text, keys)


def _line_in_json(text: str, keys: Keys) -> int:
    from everthread.config.line_numbers import line_in_json  # noqa: PLC0415 - only for complaints

    return line_in_json(text, keys)


def kind_of(value: object) -> str:
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "nothing" if value is None else "a date or time"


_KINDS = (
    (str, "a string"),
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number with a fraction"),
    (list, "an array"),
    (dict, "a table"),
)


def dotted(keys: Keys) -> str:
    """Keys as they could be written in a file."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += "." * bool(text) + (key if _BARE.fullmatch(key) else f'"{key}"')
    return shortened(text)


def shortened(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def nearest(name: str, known: Collection[str]) -> str:
    """A hint: the known name that looks most like this one, or all of them."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for complaints

    close = get_close_matches(name[:120].lower(), {k.lower(): k for k in known}, n=1, cutoff=0.5)
    if close:
        return f"did you mean {next(k for k in known if k.lower() == close[0])!r}?"
    return f"known are: {', '.join(known)}"


def printable(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        return f"has more than {TEXT_CHARS_MAX} characters; shorten it"
    return "" if text.isprintable() else "has characters that can't be seen; leave them out"


class Table:
    """One table of a file. Whoever reads a key says what it must be; anything else is a `BadConfig`."""

    def __init__(self, source: Source, keys: Keys, values: Mapping[str, object]) -> None:
        self.keys = keys
        self._source = source
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def allow(self, *known: str) -> None:
        """Refuse a key that is none of these."""
        for key in self._values:
            if key not in known:
                place = f" in [{dotted(self.keys)}]" if self.keys else ""
                raise self.error(key, f"unknown key {shortened(key)!r}{place}; {nearest(key, known)}")

    def error(self, key: str | Keys, what: str) -> BadConfig:
        """A complaint about this key of the table; about the table itself, if the key is ()."""
        more = (key,) if isinstance(key, str) else key
        return self._source.error((*self.keys, *more), what)

    def bad(self, key: str | Keys, what: str) -> BadConfig:
        """A complaint about a value, which is named by its key."""
        more = (key,) if isinstance(key, str) else key
        return self.error(more, f"{dotted((*self.keys, *more))}: {what}")

    def text(self, key: str, default: str = "", check: Check = printable) -> str:
        return default if key not in self else self._checked((key,), self._values[key], check)

    def texts(self, key: str, check: Check = printable) -> tuple[str, ...]:
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise self._wrong((key,), "an array of strings", values)
        found = enumerate(cast("list[object]", values))
        return tuple(self._checked((key, place), value, check) for place, value in found)

    def plain(self, key: str) -> object:
        """Whatever stands there."""
        return self._values[key]

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong((key,), "true or false", value)
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong((key,), "a whole number", value)
        if not low <= value <= high:
            raise self.bad(key, f"out of range; give a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong((key,), "a number", value)
        if not low <= value <= high:
            raise self.bad(key, f"out of range; give a number from {low:g} to {high:.0f}")
        return float(value)

    def number_or_none(self, key: str, low: float, high: float) -> float | None:
        return self.number(key, low, low, high) if key in self else None

    def table(self, key: str) -> Table:
        """The table of that name; an empty one, if it is not there."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong((key,), "a table", value)
        return Table(self._source, (*self.keys, key), cast("dict[str, object]", value))

    def tables(self, check: Check) -> Iterator[tuple[str, Table]]:
        """All of what is in it, as tables with names of their own."""
        for name in self._values:
            problem = check(name)
            if problem:
                raise self.error(name, f"{dotted((*self.keys, name))}: {problem}")
            yield name, self.table(name)

    def strings(self, key: str, check_name: Check, check: Check) -> dict[str, str]:
        """A table of nothing but strings."""
        table = self.table(key)
        for name in table:
            problem = check_name(name)
            if problem:
                raise table.error(name, f"{dotted((*table.keys, name))}: {problem}")
        return {name: table.text(name, check=check) for name in table}

    def every_text(self) -> Iterator[tuple[Keys, str]]:
        """Every string in it, however deep, with the way to it from here."""
        waiting: list[tuple[Keys, object]] = [((), self._values)]
        while waiting:
            keys, value = waiting.pop()
            if isinstance(value, str):
                yield keys, value
            elif isinstance(value, dict):
                inner = cast("dict[str, object]", value)
                waiting.extend([((*keys, key), found) for key, found in inner.items()][::-1])
            elif isinstance(value, list):
                items = cast("list[object]", value)
                waiting.extend([((*keys, place), found) for place, found in enumerate(items)][::-1])

    def _checked(self, keys: Keys, value: object, check: Check) -> str:
        if not isinstance(value, str):
            raise self._wrong(keys, "a string", value)
        problem = check(value)
        if problem:
            raise self.bad(keys, problem)
        return value

    def _wrong(self, keys: Keys, expected: str, value: object) -> BadConfig:
        return self.bad(keys, f"expected {expected}, found {kind_of(value)}")
