"""MCP servers as child processes, well-behaved and misbehaving."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everthread.adapters.mcp.servers import McpServer, McpServers
from everthread.domain.errors import ToolFailed
from everthread.ports.tools import Tool
from everthread.testing.contracts.lanes import RealClock
from everthread.testing.contracts.store.fixtures import StillClock
from everthread.testing.contracts.tools import USE

FIXTURES = Path(__file__).parent / "servers" / "mcp_fixtures"


SECRET = "secret-token-123"


START_S = 15.0


def with_sdk(**more: object) -> McpServer:
    return McpServer(sys.executable, (str(FIXTURES / "with_sdk.py"),), **more)  # type: ignore[arg-type]


def misbehaving(*how: str, **more: object) -> McpServer:
    return McpServer(sys.executable, (str(FIXTURES / "misbehaving.py"), *how), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    clock: StillClock | None = None, start_s: float = START_S, **servers: McpServer
) -> AsyncIterator[McpServers]:
    given = McpServers(servers, clock or RealClock(), environ=os.environ | {"OPENAI_API_KEY": SECRET})
    await given.start(start_s)
    try:
        yield given
    finally:
        await given.aclose()


def tool(servers: McpServers, name: str) -> Tool:
    [found] = [tool for tool in servers.tools() if tool.name == f"mcp__{name}"]
    return found


async def call(servers: McpServers, name: str, **arguments: str) -> str:
    return await tool(servers, name).run(arguments, USE)


async def failure(servers: McpServers, name: str) -> str:
    with pytest.raises(ToolFailed) as raised:
        await call(servers, name)
    return str(raised.value)


async def is_gone(pid: int) -> bool:
    for _ in range(100):
        if not _is_there(pid):
            return True
        await asyncio.sleep(0.02)
    return False


def _is_there(pid: int) -> bool:
    """Return True if the process exists.

    Our own zombies exist. Zombies of other parents do not: a container without an init never reaps orphans.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status or f"PPid:\t{os.getpid()}\n" in status
