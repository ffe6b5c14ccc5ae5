"""Configuration files as text and as tables. Every error message names the file and the line."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from everthread.domain.errors import BadConfig

if TYPE_CHECKING:
    from everthread.config.checks import Check
    from everthread.config.line_numbers import Keys

BYTES_MAX = 1_000_000
_TOO_DEEP = "nested too deeply; no setting needs that"
_AT_END = " (at end of document)"


def read_text(file: Path) -> str | None:
    """Return the text of a file; None if there is no file. Raises `BadConfig` if it is unreadable or not text."""
    try:
        # Opening a pipe would block until a program writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise BadConfig(f"{file}: not a regular file; put a text file there, or remove it")
        with file.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadConfig(f"{file}: {error.strerror}; make it readable for you, or remove it") from error
    if len(content) > BYTES_MAX:
        raise BadConfig(f"{file}: has more than {BYTES_MAX} bytes; shorten it")
    if b"\0" in content:
        raise BadConfig(f"{file}:{_line_at(content, content.index(0))}: not a text file; save it as UTF-8 text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfig(f"{file}:{_line_at(error.object, error.start)}: not UTF-8; save it in that encoding") from error


def _line_at(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


class SettingError(BadConfig):
    """An error in the value of one key of a file."""

    def __init__(self, where: str, problem: str, keys: Keys) -> None:
        super().__init__(f"{where}: {problem}")
        self.problem = problem
        self.keys = keys


class Source(Struct, frozen=True):
    """The text of a TOML or JSON file."""

    file: Path
    text: str
    json: bool = False

    def line_of(self, keys: Keys) -> int:
        from everthread.config.line_numbers import line_of_key  # noqa: PLC0415 - only errors need it

        return line_of_key(self.text, keys, json=self.json)

    def error(self, keys: Keys, problem: str) -> BadConfig:
        return SettingError(f"{self.file}:{self.line_of(keys)}", problem, keys)


def parse_toml(file: Path, text: str) -> Table:
    import tomllib  # noqa: PLC0415 - many homes have no such file

    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise BadConfig(f"{file}: {_TOO_DEEP}") from error
    except ValueError as error:
        raise BadConfig(_toml_problem(file, text, str(error))) from error
    return Table(Source(file, text), (), values)


def parse_json(file: Path, text: str) -> Table:
    import json  # noqa: PLC0415 - as above

    try:
        values: object = json.loads(text)
    except RecursionError as error:
        raise BadConfig(f"{file}: {_TOO_DEEP}") from error
    except json.JSONDecodeError as error:
        raise BadConfig(f"{file}:{error.lineno}: Invalid JSON: {error.msg}. Fix or remove the file.") from error
    except ValueError as error:
        raise BadConfig(f"{file}: Invalid JSON: {error}. Fix or remove the file.") from error
    if not isinstance(values, dict):
        raise BadConfig(f"{file}:1: expected an object with the key 'mcpServers', found {_type_name(values)}")
    return Table(Source(file, text, json=True), (), cast("dict[str, object]", values))


def _toml_problem(file: Path, text: str, message: str) -> str:
    at_line = re.search(r" \(at line (\d+), column \d+\)$", message)
    if at_line:
        return f"{file}:{at_line[1]}: {message[: at_line.start()]}"
    if message.endswith(_AT_END):
        lines = text.rstrip("\n").count("\n") + 1
        return f"{file}:{lines}: {message.removesuffix(_AT_END)}, at the end of the file"
    return f"{file}: {message}"


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "a date or time")


_TYPE_NAMES: Mapping[type[object], str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    list: "an array",
    dict: "a table",
    type(None): "nothing",
}


def dotted(keys: Keys) -> str:
    """Write keys as in a file: limits.turn_s, prices."openai/x".input."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += "." * bool(text) + (key if re.fullmatch("[A-Za-z0-9_-]+", key) else f'"{key}"')
    return text if len(text) <= 120 else text[:117] + "..."


def unknown_setting(keys: Keys, known: Collection[str]) -> str:
    """Describe an unknown key, with the one of its table that it is most like."""
    above = dotted(keys[:-1])
    return f"Unknown setting {dotted(keys)!r}. {suggest(str(keys[-1]), known, f'{above}.' if above else '')}"


def suggest(name: str, known: Collection[str], prefix: str = "") -> str:
    """Return a hint: the known name that is most like this one, or all of them."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    lower = {each.lower(): each for each in known}
    close = get_close_matches(name[:120].lower(), lower, n=1, cutoff=0.5)
    return f"Did you mean {prefix}{lower[close[0]]}?" if close else f"Use one of: {', '.join(known)}."


class Table:
    """One table of a file. A method that reads a key raises `BadConfig` if the value is not as required."""

    def __init__(self, source: Source, keys: Keys, values: Mapping[str, object]) -> None:
        self.keys = keys
        self.source = source
        self.values = values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def allow(self, *known: str) -> None:
        """Refuse any other key."""
        for key in self:
            if key not in known:
                raise self.error(key, unknown_setting((*self.keys, key), known))

    def error(self, key: str | Keys, problem: str) -> BadConfig:
        """Return an error about a key of this table; about the table itself if the key is ()."""
        more = (key,) if isinstance(key, str) else key
        return self.source.error((*self.keys, *more), problem)

    def bad(self, key: str | Keys, problem: str) -> BadConfig:
        """Return an error about a value, which begins with its key."""
        more = (key,) if isinstance(key, str) else key
        return self.error(more, f"{dotted((*self.keys, *more))}: {problem}")

    def text(self, key: str, check: Check) -> str:
        return self._text((key,), self.values[key], check)

    def texts(self, key: str, check: Check) -> tuple[str, ...]:
        values = self.values[key]
        if not isinstance(values, list):
            raise self._wrong_type((key,), "an array of strings", values)
        return tuple(self._text((key, n), value, check) for n, value in enumerate(cast("list[object]", values)))

    def boolean(self, key: str) -> bool:
        value = self.values[key]
        if not isinstance(value, bool):
            raise self._wrong_type((key,), "true or false", value)
        return value

    def integer(self, key: str, low: float, high: float) -> int:
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type((key,), "a whole number", value)
        if not low <= value <= high:
            raise self.bad(key, f"out of range; give a whole number from {low:.0f} to {high:.0f}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self.values[key]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong_type((key,), "a number", value)
        if not low <= value <= high:
            raise self.bad(key, f"out of range; give a number from {low:g} to {high:.10g}")
        return float(value)

    def table(self, key: str) -> Table:
        """Return an inner table; an empty one if the key is missing."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong_type((key,), "a table", value)
        return Table(self.source, (*self.keys, key), cast("dict[str, object]", value))

    def names(self, check: Check) -> list[str]:
        """Return the keys of a table whose entries the user names."""
        for name in self:
            if problem := check(name):
                raise self.bad(name, problem)
        return [*self]

    def every_text(self) -> Iterator[tuple[Keys, str]]:
        """Iterate over every string at any depth, with its keys relative to this table."""
        waiting: list[tuple[Keys, object]] = [((), self.values)]
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

    def _text(self, keys: Keys, value: object, check: Check) -> str:
        if not isinstance(value, str):
            raise self._wrong_type(keys, "a string", value)
        if problem := check(value):
            raise self.bad(keys, problem)
        return value

    def _wrong_type(self, keys: Keys, expected: str, value: object) -> BadConfig:
        return self.bad(keys, f"expected {expected}, found {_type_name(value)}")
