"""What is said about an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that is run as a child (`command`), or one that is reached by HTTP (`url`).

    What may hold a key is kept out of the repr.
    """

    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = 30.0
    """For one call; to connect again before it, if that is needed, may take as long."""
    trust: bool = False
    """Its tools run without anybody's approval."""
    disabled: bool = False
