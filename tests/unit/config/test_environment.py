"""Facts from environment variables."""

from __future__ import annotations

import pytest

from everthread.config.environment import debugging


@pytest.mark.parametrize("value", ["", "0"])
def test_debugging_is_off_by_default(value: str) -> None:
    assert not debugging({"EVERTHREAD_DEBUG": value})
    assert debugging({"EVERTHREAD_DEBUG": "1"})
