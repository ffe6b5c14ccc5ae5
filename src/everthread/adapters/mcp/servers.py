"""MCP servers as tools of the agent, through the official SDK (the extra `everthread[mcp]`).

Each server is on its own: one that dies, hangs or can't be found has its line in `problems`, and holds nobody up. The
SDK takes about a second to import. That is done by `start`, in a thread, and only if a server is configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from everthread.adapters.mcp.server import Server
from everthread.adapters.mcp.tool_list import Listed
from everthread.adapters.mcp.tool_names import exposed_names
from everthread.concurrency import in_daemon_thread
from everthread.config.settings import McpServer
from everthread.ports.clock import Clock
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

if TYPE_CHECKING:
    from everthread.adapters.mcp.connection import Connection

START_S_MAX = 20.0
IMPORT_S_MAX = 60.0
EXTRA_MISSING = "MCP servers need the extra: pip install 'everthread[mcp]'"
_LATER_S = 5.0

__all__ = ["McpServer", "McpServers"]


class McpServers:
    """The servers of one process. `start` it once, and `aclose` it in the same event loop.

    The tools stay as they are, even if their server is away, until `refresh`: a prompt that was begun with them stays
    the same. `changed` says when that would bring others.
    """

    def __init__(self, servers: Mapping[str, McpServer], clock: Clock, *, environ: Mapping[str, str]) -> None:
        """`environ` is that of this process; a child gets a few harmless names of it, and what is configured for it."""
        self._configured = {name: servers[name] for name in sorted(servers) if not servers[name].disabled}
        self._clock = clock
        self._environ = environ
        self._servers: list[Server] = []
        self._unusable: dict[str, str] = {}
        self._tools: tuple[Tool, ...] = ()
        self._closed = False

    async def start(self, timeout_s: float = START_S_MAX) -> None:
        """Connect to all of them at once, to each for no longer than this. Raises nothing: see `problems`."""
        self._unusable = {name: wrong for name, server in self._configured.items() if (wrong := _wrong(server))}
        usable = {name: server for name, server in self._configured.items() if name not in self._unusable}
        if not usable:
            return
        try:
            kind: type[Connection] = await asyncio.wait_for(
                in_daemon_thread(_connection_type, "mcp:import"), IMPORT_S_MAX
            )
        except ImportError:
            self._unusable |= dict.fromkeys(usable, EXTRA_MISSING)
            return
        except TimeoutError:
            self._unusable |= dict.fromkeys(usable, f"the MCP SDK was not loaded within {IMPORT_S_MAX:g} s")
            return
        # Without any handler, Python would write what the SDK warns of to the terminal.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        if self._closed:
            return
        self._servers = [self._server(name, server, kind) for name, server in usable.items()]
        await self.refresh(timeout_s)

    def tools(self) -> tuple[Tool, ...]:
        """By server, then by name."""
        return self._tools

    def problems(self) -> dict[str, str]:
        """One line for each server that can't be used, or not all of it."""
        found = self._unusable | {server.name: server.problem for server in self._servers if server.problem}
        return {name: found[name] for name in sorted(found)}

    @property
    def changed(self) -> bool:
        """Whether `refresh` may bring other tools: of a server that has changed, or that may be tried again."""
        return any(server.changed for server in self._servers)

    async def refresh(self, timeout_s: float = START_S_MAX, *, open_s: float | None = None) -> bool:
        """Ask the servers that have changed, try again those that are away; whether `tools` are others now.

        It is done after `timeout_s`. A server that needs `open_s` to start goes on starting meanwhile, and has
        `changed` once it is there.
        """
        bound_s = timeout_s if open_s is None else open_s
        await asyncio.gather(*(server.refresh(timeout_s, bound_s) for server in self._servers))
        before = [tool.schema for tool in self._tools]
        listed = [(server, tool) for server in self._servers for tool in server.listing.tools]
        names = exposed_names((server.name, tool.name) for server, tool in listed)
        self._tools = tuple(_tool(names[server.name, tool.name], server, tool) for server, tool in listed)
        return before != [tool.schema for tool in self._tools]

    async def aclose(self) -> None:
        """End every connection and every child, within a few seconds."""
        self._closed = True
        await asyncio.gather(*(server.close() for server in self._servers))

    def _server(self, name: str, settings: McpServer, kind: type[Connection]) -> Server:
        def connect(open_s: float, on_change: Callable[[], None]) -> Connection:
            return kind(name, settings, self._environ, open_s=open_s, on_change=on_change)

        return Server(name, settings, self._clock, connect)


def _connection_type() -> type[Connection]:
    from everthread.adapters.mcp.connection import Connection  # noqa: PLC0415 - it imports the SDK

    return Connection


def _wrong(server: McpServer) -> str:
    """What makes it unusable as it is configured."""
    if bool(server.command) == bool(server.url):
        return "it needs either a command or a url"
    try:
        scheme, host = urlsplit(server.url).scheme, urlsplit(server.url).hostname
    except ValueError:
        return "its url can't be read"
    return (
        "its url must begin with http:// or https://"
        if server.url and not (scheme in ("http", "https") and host)
        else ""
    )


def _tool(name: str, server: Server, listed: Listed) -> Tool:
    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return await server.call(listed.name, arguments)

    return Tool(
        ToolSchema(name, listed.description, listed.parameters),
        run,
        parallel=listed.read_only or listed.idempotent,
        dangerous=not (server.settings.trust or listed.read_only),
        # To connect again and to call have a bound each; those say who has not answered.
        timeout_s=2 * server.settings.timeout_s + _LATER_S,
    )
