"""Control calls that are impossible."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, scene
from tests.e2e.telegram_libraries import Aiogram

from everthread.testing.telegram import protocol as wire


async def test_impossible_control_calls_fail_with_a_reason() -> None:
    async with scene(Aiogram()) as s:
        with pytest.raises(AssertionError, match="no button 'Yes'"):
            await s.people.press(ANN, ANN, 1, "Yes")
        with pytest.raises(AssertionError, match="chat not found"):
            await s.people.say(ANN, "x", chat=-5)
        with pytest.raises(AssertionError, match="negative id"):
            await s.people.group(wire.Group(5, "Garden"))
        with pytest.raises(AssertionError, match="no update 1"):
            await s.people.redeliver(1)
        with pytest.raises(AssertionError, match="timed out waiting for an answer"):
            await s.people.until(lambda: False, "an answer", timeout_s=0.1)
