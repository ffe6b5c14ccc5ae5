"""Contract of tool sources. Subclass `ToolsContract` in a test module and define one fixture:

class TestMyTools(ToolsContract):
    @pytest.fixture
    def offer(self):
        @asynccontextmanager
        async def offer():
            async with my_tools() as tools:
                yield Offer(tools, echo="my_echo", fails="my_fails", hangs="my_hangs")

        return offer

Run by tests/contract/test_mcp_tools.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec
import pytest

from everthread.domain.errors import ToolFailed
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.ports.tools import Tool, ToolUse
from everthread.testing import in_loop

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
USE = ToolUse(SessionRef("s1", 0, SessionKey("main", "cli", ChatType.DM, "1"), 0, "me"), "t1", "c1")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools, and the names of those used by the tests."""

    tools: tuple[Tool, ...]
    echo: str
    """Tool whose answer contains its argument `text`."""
    fails: str
    hangs: str
    """Tool that does not answer for a minute."""

    def tool(self, name: str) -> Tool:
        [found] = [tool for tool in self.tools if tool.name == name]
        return found


MakeOffer = Callable[[], AbstractAsyncContextManager[OfferedTools]]


class ToolsContract:
    @pytest.fixture
    def offer(self) -> MakeOffer:
        raise NotImplementedError("give the kit an `offer`")

    @in_loop
    async def test_each_tool_has_a_valid_schema(self, offer: MakeOffer) -> None:
        async with offer() as given:
            names = [tool.name for tool in given.tools]
            assert names == list(dict.fromkeys(names))
            for tool in given.tools:
                assert NAME.fullmatch(tool.name)
                assert tool.schema.parameters["type"] == "object"
                assert msgspec.json.encode(tool.schema)
                assert tool.timeout_s > 0

    @in_loop
    async def test_tools_are_listed_in_the_same_order(self, offer: MakeOffer) -> None:
        async with offer() as first, offer() as second:
            assert [tool.schema for tool in first.tools] == [tool.schema for tool in second.tools]

    @in_loop
    async def test_concurrent_calls_get_their_own_answers(self, offer: MakeOffer) -> None:
        async with offer() as given:
            echo = given.tool(given.echo)
            answers = await asyncio.gather(*(echo.run({"text": f"number {n}."}, USE) for n in range(20)))
            assert all(f"number {n}." in answer for n, answer in enumerate(answers))

    @in_loop
    async def test_a_failed_call_raises_tool_failed(self, offer: MakeOffer) -> None:
        async with offer() as given:
            with pytest.raises(ToolFailed, match=r"\w"):
                await given.tool(given.fails).run({}, USE)

    @in_loop
    async def test_an_interrupted_call_ends_at_once_and_leaves_the_tools_usable(self, offer: MakeOffer) -> None:
        async with offer() as given:
            call = asyncio.ensure_future(given.tool(given.hangs).run({}, USE))
            await asyncio.wait({call}, timeout=0.2)
            call.cancel()
            await asyncio.wait({call}, timeout=2.0)
            assert call.cancelled()
            assert "still here" in await given.tool(given.echo).run({"text": "still here"}, USE)

    @in_loop
    async def test_a_call_after_closing_fails(self, offer: MakeOffer) -> None:
        async with offer() as given:
            pass
        with pytest.raises(ToolFailed):
            await given.tool(given.echo).run({"text": "late"}, USE)
