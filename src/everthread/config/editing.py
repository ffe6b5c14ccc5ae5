"""Changing one setting in the text of a `config.toml`, and nothing else in it: remarks, blanks and order stay."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from everthread.config.lines import Keys, layout_of_toml
from everthread.domain.errors import BadInput

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEYS_MAX = 16
_CHARS_MAX = 4096


def keys_of(text: str) -> tuple[str, ...]:
    """The keys of a setting, from how they are written: limits.turn_s, prices."openai/x".input."""
    if len(text) > _CHARS_MAX or "\n" in text or "=" in text or "#" in text:
        raise BadInput(f"{text[:60]!r} is no key; write one like limits.turn_s")
    try:
        found: object = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError) as error:
        raise BadInput(f'{text[:60]!r} is no key; write one like limits.turn_s, or prices."openai/x".input') from error
    keys: list[str] = []
    while isinstance(found, dict):
        ((key, found),) = cast("dict[str, object]", found).items()
        keys.append(key)
    if len(keys) > _KEYS_MAX:
        raise BadInput(f"{text[:60]!r} is no key; write one like limits.turn_s")
    return tuple(keys)


def values_meant(text: str) -> Iterator[Any]:
    """What a value on the command line may mean: as TOML has it, a string, or strings between commas."""
    if "\n" not in text:
        try:
            found = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            found = {}
        # What is not even itself (nan) is no value for anything, and could not be read again.
        if set(found) == {"value"} and found["value"] == found["value"]:
            yield found["value"]
    yield text
    if not text.startswith("["):
        yield [part.strip() for part in text.split(",") if part.strip()]


def changed(text: str, keys: tuple[str, ...], value: Any) -> str | None:
    """The text with that setting; None if it is written in a way that this can't change.

    Whatever is returned was read again: it says what the text said before, and the new value.
    """
    wanted = tomllib.loads(text)
    _put(wanted, keys, value)
    for candidate in _candidates(text, keys, _written(value)):
        try:
            if tomllib.loads(candidate) == wanted:
                return candidate
        except ValueError:
            continue
    return None


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = values[key] = {}
        values = cast("dict[str, Any]", inner)
    values[keys[-1]] = copy.deepcopy(value)


def _candidates(text: str, keys: tuple[str, ...], value: str) -> Iterator[str]:
    layout = layout_of_toml(text)
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    for length in range(len(keys), 0, -1):
        if keys[:length] in layout.values:
            yield _within(text, layout.values[keys[:length]], keys[length:], value)
    above = keys[:-1]
    for table, _, end in reversed(layout.tables):
        if table == above:
            yield _behind(text, end, f"{_key(keys[-1:])} = {value}", end_of_line)
    for table, pair, end in reversed(layout.pairs):
        if above and pair[: len(above)] == above and len(table) < len(above):
            yield _behind(text, end, f"{_key(keys[len(table) :])} = {value}", end_of_line)
    if above:
        start = text if not text or text.endswith("\n") else text + end_of_line
        gap = end_of_line if start.strip() else ""
        yield f"{start}{gap}[{_key(above)}]{end_of_line}{_key(keys[-1:])} = {value}{end_of_line}"
    yield _at_the_top(text, f"{_key(keys)} = {value}", end_of_line)


def _within(text: str, place: tuple[int, int], rest: Keys, value: str) -> str:
    """In the place of a value; or in an inline table, if there are keys left."""
    start, end = place
    if not rest:
        return text[:start] + value + text[end:]
    inside = text[start + 1 : end - 1].strip()
    pair = f"{_key(rest)} = {value}"
    return f"{text[:start]}{{ {inside}, {pair} }}{text[end:]}" if inside else f"{text[:start]}{{ {pair} }}{text[end:]}"


def _behind(text: str, end: int, line: str, end_of_line: str) -> str:
    end -= text[:end].endswith("\r")
    return f"{text[:end]}{end_of_line}{line}{text[end:] or end_of_line}"


def _at_the_top(text: str, line: str, end_of_line: str) -> str:
    """Behind the settings that stand before all tables; else before the first table, and the remarks on it."""
    layout = layout_of_toml(text)
    above_all = [end for table, _, end in layout.pairs if table == ()]
    if above_all:
        return _behind(text, above_all[-1], line, end_of_line)
    if not layout.tables:
        start = text if not text or text.endswith("\n") else text + end_of_line
        return f"{start}{line}{end_of_line}"
    place = text.rfind("\n", 0, layout.tables[0][1]) + 1
    while place > 0 and text[text.rfind("\n", 0, place - 1) + 1 : place].lstrip().startswith("#"):
        place = text.rfind("\n", 0, place - 1) + 1
    return f"{text[:place]}{line}{end_of_line}{end_of_line}{text[place:]}"


def _key(keys: Keys) -> str:
    return ".".join(str(key) if _BARE.fullmatch(str(key)) else json.dumps(key, ensure_ascii=False) for key in keys)


def _written(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(_written(item) for item in cast('list[Any]', value))}]"
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return f"{{ {', '.join(f'{_key((key,))} = {_written(item)}' for key, item in items)} }}"
        case _:
            return str(value)
