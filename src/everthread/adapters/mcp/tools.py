"""Tools that servers offer, and their names for the model: valid, and unique among all servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

NAME_CHARS_MAX = 64
_SUFFIX_CHARS = 8
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


class ServerUnavailable(Exception):
    """The server can't be used; the message is the reason, on one line."""


class ListedTool(Struct, frozen=True):
    """A tool as its server lists it, within our limits."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    annotations: Mapping[str, Any]
    """Claims of the server about the tool, such as `readOnlyHint`. They may be false."""


class ToolList(Struct, frozen=True):
    tools: tuple[ListedTool, ...]
    """Sorted by name."""
    left_out: tuple[str, ...]
    """Reasons why some tools are left out."""


def exposed_names(tools: Iterable[tuple[str, str]], servers: Iterable[str] = ()) -> dict[tuple[str, str], str]:
    """Name each (server, tool). A name that is too long or ambiguous ends in a hash of the full name.

    All tools that share a name get the hash, so an approved name or one in a prompt never comes to mean the tool of
    another server. So does a tool whose name begins like those of another one of `servers`, even while that server is
    unavailable and lists no tool. The same tools have the same names in every process.
    """
    full = {tool: "__".join(("mcp", *(_INVALID.sub("_", part) for part in tool))) for tool in tools}
    prefixes = {server: f"mcp__{_INVALID.sub('_', server)}__" for server in servers}
    names = {
        tool: _with_suffix(tool, name)
        if len(name) > NAME_CHARS_MAX or _begins_like_another(tool[0], name, prefixes)
        else name
        for tool, name in full.items()
    }
    # Repeated, because a name with a suffix may equal the name of another tool.
    while ambiguous := _ambiguous(names, full):
        names |= {tool: _with_suffix(tool, full[tool]) for tool in ambiguous}
    return names


def _begins_like_another(server: str, name: str, prefixes: Mapping[str, str]) -> bool:
    """Return True if the name begins like those of another server whose names are as long or longer."""
    own = len(prefixes.get(server, ""))
    return any(name.startswith(prefix) and len(prefix) >= own for other, prefix in prefixes.items() if other != server)


def _ambiguous(names: Mapping[tuple[str, str], str], full: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Return the tools without a suffix whose name is not unique."""
    uses = Counter(names.values())
    return [tool for tool, name in names.items() if uses[name] > 1 and name == full[tool]]


def _with_suffix(tool: tuple[str, str], name: str) -> str:
    suffix = hashlib.sha256("\0".join(tool).encode(errors="surrogatepass")).hexdigest()[:_SUFFIX_CHARS]
    return f"{name[: NAME_CHARS_MAX - _SUFFIX_CHARS - 1]}_{suffix}"
