"""The client of a test platform's control interface."""

from __future__ import annotations

import pytest

from everthread.testing.loopback.protocol import ChatEvent
from everthread.testing.loopback.server import LoopbackServer, PlatformState
from everthread.testing.loopback.users import LoopbackUsers


async def test_the_log_is_read_from_where_the_last_call_ended() -> None:
    async with LoopbackServer(PlatformState()) as server, LoopbackUsers(server.base_url) as users:
        await users.say_all([("7", "one"), ("7", "two")])
        await users.refresh()
        await users.say("7", "three")
        await users.until(lambda: len(users.log) == 3, "the third message")
        assert [(event.number, event.text) for event in users.log] == [(0, "one"), (1, "two"), (2, "three")]
        assert all(isinstance(event, ChatEvent) for event in users.log)


async def test_a_condition_that_never_holds_and_a_failed_call_fail_the_test() -> None:
    async with LoopbackServer(PlatformState()) as server, LoopbackUsers(server.base_url) as users:
        with pytest.raises(AssertionError, match="timed out waiting for an answer"):
            await users.until(lambda: False, "an answer", timeout_s=0.05)
        with pytest.raises(AssertionError, match="/admin/redeliver: 400"):
            await users.redeliver("unknown")
