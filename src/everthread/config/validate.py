"""Find every mistake in a configuration, not only the first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from everthread.config import dotenv
from everthread.config.parse import read_config, read_mcp
from everthread.config.settings import HomePaths
from everthread.config.tables import SettingError, Table, parse_json, parse_toml, read_text
from everthread.domain.errors import BadConfig

PROBLEMS_MAX = 50


def problems(places: HomePaths, *, draft: str | None = None) -> list[str]:
    """Return one line for each mistake, with file and line. A draft is read in place of the text of `config.toml`."""
    found: list[str] = []
    try:
        found += dotenv.problems(places.env, read_text(places.env) or "")
    except BadConfig as error:
        found.append(str(error))
    for file, parse, read in ((places.config, parse_toml, read_config), (places.mcp, parse_json, read_mcp)):
        try:
            text = draft if draft is not None and file == places.config else read_text(file)
            if text is not None:
                found += _problems_of(parse(file, text), read, places)
        except BadConfig as error:
            found.append(str(error))
    return found[:PROBLEMS_MAX]


def _problems_of(top: Table, read: Callable[[Table, Path, Path], object], places: HomePaths) -> list[str]:
    """Read a file repeatedly, each time without the mistake found before."""
    found: list[str] = []
    values = cast("dict[str, Any]", top.values)
    while len(found) < PROBLEMS_MAX:
        try:
            read(top, places.home, places.env)
            return found
        except SettingError as error:
            found.append(str(error))
            if not _remove(values, [str(key) for key in takewhile(lambda key: isinstance(key, str), error.keys)]):
                return found
    return found


def _remove(values: dict[str, Any], keys: list[str]) -> bool:
    """Remove the value that the keys lead to, or the nearest one above it; return False if there is none."""
    inner: Any = values
    path: list[dict[str, Any]] = []
    for key in keys:
        if not isinstance(inner, dict) or key not in inner:
            break
        path.append(cast("dict[str, Any]", inner))
        inner = path[-1][key]
    if not path:
        return False
    key = keys[len(path) - 1]
    if keys[0] == "providers" and len(path) == 2:
        # An invalid provider still exists, so a reference to it is no mistake.
        path[-1][key] = {"kind": "local"}
    else:
        del path[-1][key]
    return True
