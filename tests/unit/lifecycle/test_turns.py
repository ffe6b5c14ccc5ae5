from pathlib import Path

import pytest
from tests.runtime import CLI, CoreFixture

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Inbound


async def test_tool_calls_are_stored_by_id(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, "me", "look"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(BadInput, match="call_0"):
            await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(NotFound, match="call_9"):
            await core.lifecycle.finish_tool(ticket, "call_9", "seen")
