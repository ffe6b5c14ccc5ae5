"""Test MCP servers against the tool contract. A misbehaving server must not delay others."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.mcp_servers import SECRET, call, misbehaving, running, tool, with_sdk

from everthread.adapters.mcp.servers import McpServer
from everthread.testing.contracts.tools import MakeOffer, OfferedTools, ToolsContract


class TestMcpTools(ToolsContract):
    @pytest.fixture
    def offer(self) -> MakeOffer:
        @asynccontextmanager
        async def offer() -> AsyncIterator[OfferedTools]:
            async with running(a=misbehaving("well"), b=misbehaving("well")) as servers:
                assert servers.problems() == {}
                yield OfferedTools(servers.tools(), echo="mcp__a__echo", fails="mcp__a__fails", hangs="mcp__b__hang")

        return offer


async def test_the_settings_and_no_hints_determine_which_tools_need_approval() -> None:
    async with running(
        a=with_sdk(read_only=("slow",)), b=misbehaving(trust=True, timeout_s=7.0), c=with_sdk(trust=True)
    ) as servers:
        names = ("a__echo", "a__again", "a__slow", "a__huge", "c__echo", "c__again", "c__slow")
        seen = {name: (tool(servers, name).dangerous, tool(servers, name).parallel) for name in names}
        assert seen == {
            "a__echo": (True, False),
            "a__again": (True, False),
            "a__slow": (False, True),
            "a__huge": (True, False),
            "c__echo": (False, True),
            "c__again": (False, True),
            "c__slow": (False, False),
        }
        assert not tool(servers, "b__die").dangerous
        assert not tool(servers, "b__die").parallel
        assert tool(servers, "b__die").timeout_s > 7.0


async def test_servers_that_fail_delay_no_other_and_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    async with running(
        start_s=6.0,
        absent=McpServer("no-such-command-anywhere"),
        both=McpServer("x", url="http://localhost"),
        exits=misbehaving("exits"),
        folder=misbehaving(cwd="/no/such/folder"),
        ftp=McpServer(url="ftp://127.0.0.1/x"),
        noise=misbehaving("noise"),
        nobody=McpServer(url="http://127.0.0.1:9/mcp", headers={"Authorization": f"Bearer {SECRET}"}),
        off=McpServer("no-such-command-anywhere", disabled=True),
        silent=misbehaving("silent"),
        works=misbehaving(),
    ) as servers:
        assert time.monotonic() - began < 6.0 + 5.0
        assert servers.problems() == {
            "absent": "no-such-command-anywhere was not found",
            "both": "it needs either a command or a url",
            "exits": "it exited with status 1: there is no such database",
            "folder": "/no/such/folder was not found",
            "ftp": "its url must begin with http:// or https://",
            "nobody": "can't connect: All connection attempts failed",
            "noise": "no answer within 6 s; it writes other text than MCP to its standard output",
            "silent": "no answer within 6 s",
        }
        assert await call(servers, "works__echo", text="fine") == "fine"
    assert capfd.readouterr() == ("", "")
