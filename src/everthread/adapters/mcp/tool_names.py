"""What a model may call a server's tool: the reduced name, unique among all of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

NAME_CHARS_MAX = 64
_MARK_CHARS = 8
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def exposed_names(tools: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The name of each (server, tool). One that is too long, or that several would have, ends in a mark made from its
    full name.

    All of those several: a name that was approved or is in a prompt never comes to mean the tool of another server,
    whichever of them is there first. The same tools have the same names in every process.
    """
    full = {tool: "__".join(("mcp", *(_NOT_ALLOWED.sub("_", part) for part in tool))) for tool in tools}
    names = {tool: name if len(name) <= NAME_CHARS_MAX else _marked(tool, name) for tool, name in full.items()}
    # Again, because a mark may make it the name that somebody has chosen.
    while clashing := _clashing(names, full):
        names |= {tool: _marked(tool, full[tool]) for tool in clashing}
    return names


def _clashing(names: Mapping[tuple[str, str], str], full: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Those without a mark whose name is not theirs alone."""
    having = Counter(names.values())
    return [tool for tool, name in names.items() if having[name] > 1 and name == full[tool]]


def _marked(tool: tuple[str, str], name: str) -> str:
    mark = hashlib.sha256("\0".join(tool).encode(errors="surrogatepass")).hexdigest()[:_MARK_CHARS]
    return f"{name[: NAME_CHARS_MAX - _MARK_CHARS - 1]}_{mark}"
