"""Agents that the bootstrap wires into a runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.agent.model_call import ModelCaller
from everthread.bootstrap import agent
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import DelegationSettings, ReviewSettings, Settings


async def test_a_review_is_limited_per_turn_and_a_delegated_task_per_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[ModelCaller] = []

    def make_caller(*arguments: Any, **limits: Any) -> ModelCaller:
        callers.append(ModelCaller(*arguments, **limits))
        return callers[-1]

    monkeypatch.setattr(agent, "ModelCaller", make_caller)
    settings = Settings(tmp_path, review=ReviewSettings(spend=0.5), delegation=DelegationSettings(spend=0.25))
    async with Runtime(settings) as runtime:
        await runtime.ready()
    limits = {(caller.spend_per_session, caller.spend_per_turn) for caller in callers}
    assert limits == {(None, None), (None, 0.5), (0.25, None)}
