"""Change `config.toml` and `.env`.

A change of one setting keeps comments, blanks and order. The new text is parsed and checked before it is written. A
file is replaced atomically, and only its owner can read it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from everthread.config import dotenv
from everthread.config.line_numbers import Keys, Layout
from everthread.config.parse import read_files
from everthread.config.secrets import refuse_secrets
from everthread.config.settings import HomePaths
from everthread.config.tables import SettingError, Source, Table, dotted, parse_toml, read_text
from everthread.domain.errors import BadConfig, BadInput, DiskFull, StoreUnwritable

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEYS_MAX = 16
_CHARS_MAX = 4096


def parse_key(text: str) -> tuple[str, ...]:
    """Split a dotted key such as limits.turn_s or prices."openai/x".input. Raises `BadInput`."""
    if len(text) > _CHARS_MAX or "\n" in text or "=" in text or "#" in text:
        raise BadInput(f"{text[:60]!r} is not a setting; write one like limits.turn_s")
    try:
        found: object = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f'{text[:60]!r} is not a setting; write one like limits.turn_s, or prices."openai/x".input'
        ) from error
    keys: list[str] = []
    while isinstance(found, dict):
        ((key, found),) = cast("dict[str, object]", found).items()
        keys.append(key)
    if len(keys) > _KEYS_MAX:
        raise BadInput(f"{text[:60]!r} is not a setting; write one like limits.turn_s")
    return tuple(keys)


def candidate_values(text: str) -> Iterator[Any]:
    """Yield the readings of a value on the command line: a TOML value, a string, a comma-separated list."""
    if "\n" not in text:
        try:
            found = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            found = {}
        # Exclude nan: no setting accepts it, and it would fail the comparison in `change_setting`.
        if set(found) == {"value"} and found["value"] == found["value"]:
            yield found["value"]
    yield text
    if not text.startswith("["):
        yield [part.strip() for part in text.split(",") if part.strip()]


def change_setting(text: str, keys: tuple[str, ...], value: Any) -> str | None:
    """Return the text with the setting changed; None if this module can't change it as it is written.

    The result was parsed again and differs from the old text in this value only.
    """
    wanted = tomllib.loads(text)
    _put(wanted, keys, value)
    for candidate in _candidates(text, keys, _format_value(value)):
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
    layout = Layout(text)
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    for length in range(len(keys), 0, -1):
        if keys[:length] in layout.values:
            yield _within(text, layout.values[keys[:length]], keys[length:], value)
    above = keys[:-1]
    for each in reversed(layout.statements):
        if each.table == above or (len(each.table) < len(above) and each.keys[: len(above)] == above):
            line = f"{end_of_line}{_key(keys[len(each.table) :])} = {value}"
            yield f"{text[: each.end]}{line}{text[each.end :] or end_of_line}"
    line = f"{_key(keys[-1:])} = {value}{end_of_line}"
    if not above and layout.statements:
        # Before the first table and its comments.
        place = text.rfind("\n", 0, layout.statements[0].start) + 1
        while place > 0 and text[text.rfind("\n", 0, place - 1) + 1 : place].lstrip().startswith("#"):
            place = text.rfind("\n", 0, place - 1) + 1
        yield f"{text[:place]}{line}{end_of_line}{text[place:]}"
        return
    start = text if not text or text.endswith("\n") else text + end_of_line
    if above:
        line = f"{end_of_line if start.strip() else ''}[{_key(above)}]{end_of_line}{line}"
    yield start + line


def _within(text: str, place: tuple[int, int], rest: Keys, value: str) -> str:
    """Replace a value; or extend an inline table, if keys are left."""
    start, end = place
    if rest:
        inside = text[start + 1 : end - 1].strip()
        value = f"{{ {inside}{', ' * bool(inside)}{_key(rest)} = {value} }}"
    return text[:start] + value + text[end:]


def _key(keys: Keys) -> str:
    return ".".join(str(key) if _BARE.fullmatch(str(key)) else json.dumps(key, ensure_ascii=False) for key in keys)


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(_format_value(item) for item in cast('list[Any]', value))}]"
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return f"{{ {', '.join(f'{_key((key,))} = {_format_value(item)}' for key, item in items)} }}"
        case _:
            return str(value)


def set_value(places: HomePaths, key: str, written: str) -> Any:
    """Set one setting in `config.toml` to the first valid reading of the text, and return it. Raises `BadInput`."""
    keys = parse_key(key)
    _refuse_secret(places, keys, written)
    first: BadConfig | None = None
    for value in candidate_values(written):
        try:
            _set(places, {keys: value})
            return value
        except BadConfig as error:
            first = first or error
    assert first is not None
    if isinstance(first, SettingError) and first.keys[: len(keys)] == keys[: len(first.keys)]:
        raise BadInput(first.problem) from first
    raise first


def set_values(places: HomePaths, values: Mapping[str, Any]) -> None:
    """Set several settings, or none if one is invalid."""
    _set(places, {parse_key(key): value for key, value in values.items()})


def replace_config(places: HomePaths, text: str) -> None:
    """Check a new text and replace `config.toml` with it. Raises `BadConfig` for the first mistake."""
    read_files(places.home, places.config, places.env, places.mcp, draft=text)
    replace_file(places.config, text)


def set_secret(places: HomePaths, name: str, value: str) -> None:
    """Set a variable in `.env`."""
    text = read_text(places.env) or ""
    changed_text = dotenv.with_variable(text, name, value)
    dotenv.parse(places.env, changed_text)
    replace_file(places.env, changed_text)


def _refuse_secret(places: HomePaths, keys: tuple[str, ...], written: str) -> None:
    """Refuse a secret. Runs first, so that no other error message can quote it."""
    values: Any = written
    for key in reversed(keys):
        values = {key: values}
    try:
        refuse_secrets(Table(Source(places.config, ""), (), values), places.env)
    except SettingError as error:
        raise BadInput(error.problem.removesuffix(" and remove it here")) from error


def _set(places: HomePaths, values: Mapping[tuple[str, ...], Any]) -> None:
    text = read_text(places.config) or ""
    parse_toml(places.config, text)
    for keys, value in values.items():
        result = change_setting(text, keys, value)
        if result is None:
            raise BadInput(f"{dotted(keys)} can't be set in {places.config} as it is written; use config edit")
        text = result
    replace_config(places, text)


def replace_file(file: Path, content: str) -> None:
    """Replace a file atomically. For a symbolic link, replace its target."""
    target = file.resolve()
    draft = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # `mkstemp` creates a file that only its owner can read.
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, target)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        problem = f"{file}: {error.strerror}; nothing was changed"
        if error.errno == 28:
            raise DiskFull(f"{problem}, free some space and try again") from error
        raise StoreUnwritable(f"{problem}, make it and its folder writable for you") from error
