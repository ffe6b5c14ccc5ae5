"""What a model may call a server's tool: the reduced name, unique among all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

NAME_CHARS_MAX = 64
_MARK_CHARS = 8
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def exposed_names(tools: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The name of each (server, tool). One that is too long or taken ends in a mark made from its full name, so the
    same tools have the same names in every process.
    """
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for tool in tools:
        name = "__".join(("mcp", *(_NOT_ALLOWED.sub("_", part) for part in tool)))
        if len(name) > NAME_CHARS_MAX or name in taken:
            mark = hashlib.sha256("\0".join(tool).encode(errors="surrogatepass")).hexdigest()[:_MARK_CHARS]
            name = f"{name[: NAME_CHARS_MAX - _MARK_CHARS - 1]}_{mark}"
        names[tool] = name
        taken.add(name)
    return names
