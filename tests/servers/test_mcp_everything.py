"""Test the protocol authors' reference server, written with another SDK, over standard streams and over HTTP."""

import asyncio
import fcntl
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.servers.free_port import free_port

from everthread.adapters.mcp.servers import McpServer, McpServers
from everthread.domain.errors import ToolFailed
from everthread.testing.contracts.lanes import RealClock
from everthread.testing.contracts.tools import USE

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

PACKAGE = "@modelcontextprotocol/server-everything"
VERSION = "2026.8.31"
CACHE = Path(__file__).parents[2] / ".cache" / "mcp"
"""A separate folder, because npm removes packages that it did not install there itself."""
SCRIPT = CACHE / "node_modules" / PACKAGE / "dist" / "index.js"
SECRET = "secret-token-123"
START_S = 30.0


@pytest.fixture(scope="module")
def script() -> str:
    """Path of the script. The first caller installs it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not SCRIPT.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), f"{PACKAGE}@{VERSION}"]
            subprocess.run(command, check=True, timeout=100, stdout=subprocess.DEVNULL)
    return str(SCRIPT)


@contextmanager
def serving(script: str, transport: str, port: int) -> Iterator[None]:
    environ = os.environ | {"PORT": str(port)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(["node", script, transport], env=environ, stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(port)
            yield
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            probe.settimeout(0.1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server does not listen")


@asynccontextmanager
async def running(server: McpServer) -> AsyncIterator[McpServers]:
    servers = McpServers({"all": server}, RealClock(), environ=os.environ | {"OPENAI_API_KEY": SECRET})
    await servers.start(START_S)
    try:
        yield servers
    finally:
        await servers.aclose()


async def call(servers: McpServers, name: str, **arguments: object) -> str:
    [found] = [tool for tool in servers.tools() if tool.name == f"mcp__all__{name}"]
    return await found.run(arguments, USE)


async def works(servers: McpServers) -> None:
    assert servers.problems() == {}
    assert len(servers.tools()) >= 10
    assert await call(servers, "echo", message="grüße") == "Echo: grüße"
    sums = await asyncio.gather(*(call(servers, "get-sum", a=n, b=1) for n in range(20)))
    assert all(f"is {n + 1}." in answer for n, answer in enumerate(sums))
    assert "[image: image/png, " in await call(servers, "get-tiny-image")
    assert "conditions" in await call(servers, "get-structured-content", location="Chicago")
    assert "[resource demo://resource/dynamic/text/1: text/plain, " in await call(
        servers, "get-resource-reference", resourceType="Text", resourceId=1
    )
    with pytest.raises(ToolFailed, match="(?i)invalid"):
        await call(servers, "get-sum", a="not a number")
    long = asyncio.ensure_future(call(servers, "trigger-long-running-operation", duration=60, steps=2))
    await asyncio.sleep(0.3)
    long.cancel()
    await asyncio.wait({long}, timeout=2.0)
    assert long.cancelled()
    assert await call(servers, "echo", message="on") == "Echo: on"


async def test_the_server_works_over_standard_streams_and_sees_no_key(script: str) -> None:
    async with running(McpServer("node", (script, "stdio"), env={"MEANT": "for it"})) as servers:
        await works(servers)
        environment = await call(servers, "get-env")
        assert "MEANT" in environment
        assert SECRET not in environment


async def test_a_call_that_times_out_fails_and_the_server_keeps_running(script: str) -> None:
    async with running(McpServer("node", (script, "stdio"), timeout_s=1.0)) as servers:
        with pytest.raises(ToolFailed, match="has not answered within 1 s"):
            await call(servers, "trigger-long-running-operation", duration=60, steps=2)
        assert await call(servers, "echo", message="on") == "Echo: on"


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "mcp"), ("sse", "sse")])
async def test_the_server_works_over_http(script: str, transport: str, path: str) -> None:
    port = free_port()
    with serving(script, transport, port):
        async with running(McpServer(url=f"http://127.0.0.1:{port}/{path}")) as servers:
            await works(servers)


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "mcp"), ("sse", "sse")])
async def test_a_restarted_http_server_is_reconnected(script: str, transport: str, path: str) -> None:
    port = free_port()
    with serving(script, transport, port):
        servers = McpServers({"all": McpServer(url=f"http://127.0.0.1:{port}/{path}")}, RealClock(), environ={})
        await servers.start(START_S)
        assert await call(servers, "echo", message="one") == "Echo: one"
    try:
        with pytest.raises(ToolFailed, match="the MCP server all is not running: .*; the rest works"):
            await call(servers, "echo", message="nobody")
        with pytest.raises(ToolFailed, match="is not running"):
            await call(servers, "echo", message="nobody")
        with serving(script, transport, port):
            await servers.refresh()
            assert await call(servers, "echo", message="two") == "Echo: two"
    finally:
        await servers.aclose()


async def test_a_session_dropped_by_the_server_is_reopened_by_the_next_call(script: str) -> None:
    port = free_port()
    with serving(script, "streamableHttp", port):
        servers = McpServers({"all": McpServer(url=f"http://127.0.0.1:{port}/mcp")}, RealClock(), environ={})
        await servers.start(START_S)
    try:
        with serving(script, "streamableHttp", port):
            with pytest.raises(ToolFailed, match="is not running: .*HTTP status 400"):
                await call(servers, "echo", message="one")
            assert await call(servers, "echo", message="two") == "Echo: two"
    finally:
        await servers.aclose()
