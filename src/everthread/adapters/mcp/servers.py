"""MCP servers as tools of the agent, through the official SDK (the extra `everthread[mcp]`).

Servers are independent: one that dies, hangs or is missing has a line in `problems`, and delays no other. The SDK takes
about a second to import; `start` does that in a thread, and only if a server is configured.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from everthread.adapters.mcp.server import McpServerClient
from everthread.adapters.mcp.tools import ListedTool, exposed_names
from everthread.concurrency import in_daemon_thread
from everthread.config.schema import McpServer
from everthread.domain.rights import MCP_SOURCE
from everthread.domain.tool_definition import DefinitionText, ToolDefinition
from everthread.ports.clock import Clock
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

if TYPE_CHECKING:
    from everthread.adapters.mcp.connection import McpConnection

START_S_MAX = 20.0
IMPORT_S_MAX = 60.0
EXTRA_MISSING = "MCP servers need the extra: pip install 'everthread[mcp]'"
_GRACE_S = 5.0

__all__ = ["McpServer", "McpServers"]


class McpServers:
    """The servers of one process. Call `start` once, and `aclose` in the same event loop.

    The tools change only in `refresh`, even if their server is unavailable, so that the prompt prefix stays the same.
    `changed` tells when a refresh is worthwhile.
    """

    def __init__(self, servers: Mapping[str, McpServer], clock: Clock, *, environ: Mapping[str, str]) -> None:
        """`environ` is the environment of this process; a child gets a few harmless variables of it."""
        self._configured = {name: servers[name] for name in sorted(servers) if not servers[name].disabled}
        self._clock = clock
        self._environ = environ
        self._servers: list[McpServerClient] = []
        self._unusable: dict[str, str] = {}
        self._tools: tuple[Tool, ...] = ()
        self._closed = False

    async def start(self, timeout_s: float = START_S_MAX) -> None:
        """Connect to all servers concurrently, each within `timeout_s`. Raises nothing: see `problems`."""
        self._unusable = {
            name: problem for name, server in self._configured.items() if (problem := _config_problem(server))
        }
        usable = {name: server for name, server in self._configured.items() if name not in self._unusable}
        if not usable:
            return
        try:
            connection_type: type[McpConnection] = await asyncio.wait_for(
                in_daemon_thread(_connection_type, "mcp:import"), IMPORT_S_MAX
            )
        except ImportError:
            self._unusable |= dict.fromkeys(usable, EXTRA_MISSING)
            return
        except TimeoutError:
            self._unusable |= dict.fromkeys(usable, f"the MCP SDK was not loaded within {IMPORT_S_MAX:g} s")
            return
        # Without a handler, Python would print the SDK's warnings to the terminal.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        if self._closed:
            return
        self._servers = [self._server(name, server, connection_type) for name, server in usable.items()]
        await self.refresh(timeout_s)

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, sorted by server and name."""
        return self._tools

    def problems(self) -> dict[str, str]:
        """Return a line for each server that can't be used, completely or in part."""
        problems = self._unusable | {server.name: server.problem for server in self._servers if server.problem}
        return {name: problems[name] for name in sorted(problems)}

    @property
    def changed(self) -> bool:
        """True if `refresh` may change the tools of a server."""
        return any(server.changed for server in self._servers)

    async def refresh(self, timeout_s: float = START_S_MAX, *, open_s: float | None = None) -> bool:
        """Update changed servers and reconnect unavailable ones. Return whether `tools` changed.

        Returns within `timeout_s`. A server may take up to `open_s` to start in the background; then `changed` is true.
        """
        bound_s = timeout_s if open_s is None else open_s
        await asyncio.gather(*(server.refresh(timeout_s, bound_s) for server in self._servers))
        before = [(tool.schema, tool.definition) for tool in self._tools]
        listed = [(server, tool) for server in self._servers for tool in server.listing.tools]
        names = exposed_names(((server.name, tool.name) for server, tool in listed), self._configured)
        self._tools = tuple(_tool(names[server.name, tool.name], server, tool) for server, tool in listed)
        return before != [(tool.schema, tool.definition) for tool in self._tools]

    async def aclose(self) -> None:
        """Close every connection and child process, within a few seconds."""
        self._closed = True
        await asyncio.gather(*(server.close() for server in self._servers))

    def _server(self, name: str, settings: McpServer, connection_type: type[McpConnection]) -> McpServerClient:
        def connect(open_s: float, on_change: Callable[[], None]) -> McpConnection:
            return connection_type(name, settings, self._environ, open_s=open_s, on_change=on_change)

        return McpServerClient(name, settings, self._clock, connect)


def _connection_type() -> type[McpConnection]:
    from everthread.adapters.mcp.connection import McpConnection  # noqa: PLC0415 - imports the SDK

    return McpConnection


def _config_problem(server: McpServer) -> str:
    """Return what is wrong with the configuration of a server."""
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


def _tool(name: str, server: McpServerClient, listed: ListedTool) -> Tool:
    """Return the tool. Only the settings decide if it needs approval: annotations are claims of the server."""
    settings = server.settings

    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return await server.call(listed, arguments)

    text = DefinitionText(listed.description, listed.parameters, listed.annotations)
    is_read_only = listed.name in settings.read_only
    return Tool(
        ToolSchema(name, listed.description, listed.parameters),
        run,
        # Calls that the server wrongly calls harmless could interfere when they run at the same time.
        parallel=is_read_only or (settings.trust and _claims_to_be_harmless(listed)),
        dangerous=not (settings.trust or is_read_only),
        # Reconnecting and calling have a limit each, whose messages name the server: let them expire first.
        timeout_s=2 * settings.timeout_s + _GRACE_S,
        source=f"{MCP_SOURCE}{server.name}",
        definition=None
        if settings.trust
        else ToolDefinition.of(server.name, server_identity(settings), listed.name, text),
    )


def _claims_to_be_harmless(listed: ListedTool) -> bool:
    return any(listed.annotations.get(hint) is True for hint in ("readOnlyHint", "idempotentHint"))


def server_identity(server: McpServer) -> str:
    """Return a hash of the program or address of a server. It shows none of them: they may contain keys."""
    identity = (server.command, server.args, str(server.cwd or ""), server.url)
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()
