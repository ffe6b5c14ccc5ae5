"""Everything that is wrong with a configuration, not only the first thing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.config import dotenv
from everthread.config import tables as reading
from everthread.config.parse import MCP_SERVERS, mcp_servers, parsed
from everthread.config.schema import built_in_providers
from everthread.config.secrets import refuse_secrets
from everthread.config.settings import Places
from everthread.config.tables import Mistake, Source, Table
from everthread.domain.errors import BadConfig

PROBLEMS_MAX = 50


def problems(places: Places, *, draft: str | None = None) -> list[str]:
    """A line each, with file and line. A draft is taken for the text of `config.toml`."""
    found: list[str] = []
    try:
        env = reading.text_of(places.env)
        found += dotenv.problems(places.env, env or "")
    except BadConfig as error:
        found.append(str(error))
    for file, read in ((places.config, reading.toml), (places.mcp, reading.json)):
        try:
            text = draft if draft is not None and file == places.config else reading.text_of(file)
            if text is not None:
                found += _of_file(*read(file, text), places, is_mcp=file == places.mcp)
        except BadConfig as error:
            found.append(str(error))
    return found[:PROBLEMS_MAX]


def _of_file(source: Source, values: dict[str, Any], places: Places, *, is_mcp: bool) -> list[str]:
    """Read it again and again, each time without what was wrong before."""
    found: list[str] = []
    while len(found) < PROBLEMS_MAX:
        try:
            _read(Table(source, (), values), places.env, places.home, is_mcp)
            return found
        except Mistake as error:
            found.append(str(error))
            if not _take_out(values, tuple(error.keys)):
                return found
    return found


def _read(top: Table, env: Path, home: Path, is_mcp: bool) -> None:
    refuse_secrets(top, env, built_in_providers())
    if is_mcp:
        top.allow(MCP_SERVERS)
        mcp_servers(top.table(MCP_SERVERS), home)
    else:
        parsed(top, home)


def _take_out(values: dict[str, Any], keys: tuple[str | int, ...]) -> bool:
    """Take out what the keys lead to, or what is nearest to it; false if nothing is there to take out."""
    names = [key for key in keys[: next((n for n, k in enumerate(keys) if isinstance(k, int)), len(keys))]]
    inner: Mapping[str, Any] = values
    way: list[dict[str, Any]] = []
    for name in names:
        if not isinstance(inner, dict) or name not in inner:
            break
        way.append(inner)
        inner = inner[str(name)]
    if not way:
        return False
    name = str(names[len(way) - 1])
    if names[0] == "providers" and len(way) == 2:
        # It is there, whatever else is wrong with it: whoever refers to it makes no mistake.
        way[-1][name] = {"kind": "local"}
    else:
        del way[-1][name]
    return True
