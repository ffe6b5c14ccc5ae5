"""Calls of the model: retries, fallback models, spending limits and settled costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, until

from everthread.agent.events import Retrying, TextWritten
from everthread.domain.errors import (
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
)
from everthread.domain.model import (
    SessionRef,
    ToolCall,
)
from everthread.domain.spend import Price
from everthread.plugins import hookimpl
from everthread.ports.model import Answer, Delta, Request, Usage

LOOK = ToolCall("c1", "look", "{}")


async def test_an_unavailable_endpoint_is_retried(tmp_path: Path) -> None:
    lines = [ModelUnavailable("busy", retry_after_s=7.0), ModelUnavailable("gone"), "here"]
    async with AgentFixture(tmp_path, FakeModel(list(lines))) as core:
        ended = await core.ask("hello?")
        assert (ended.text, ended.problem) == ("here", "")
        waits = [event.wait_s for event in core.heard if isinstance(event, Retrying)]
        assert waits == [7.0, 1.0]


async def test_the_text_of_an_aborted_answer_is_discarded(tmp_path: Path) -> None:
    model = FakeModel(["this will break off", ModelUnavailable("cut"), "whole"], broken_after=2)
    async with AgentFixture(tmp_path, model) as core:
        ended = await core.ask("hello?")
        assert ended.text == "whole"
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert turn.assistant_text == "whole"


async def test_a_fallback_model_answers(tmp_path: Path) -> None:
    first, second = FakeModel([ModelUnauthorized("no key")]), FakeModel(["I am second"])
    async with AgentFixture(tmp_path, first) as core:
        core.choices = [first.choice("fake/one"), second.choice("fake/two")]
        ended = await core.ask("hello")
        assert ended.text == "I am second"
        assert second.requests[0].head == second.head(_prompt_of(first)).replace(b'"one"', b'"two"')
        await core.ask("again")
        assert b"I am second" in second.requests[1].history


def _prompt_of(model: FakeModel) -> Any:
    import json

    from everthread.ports.model import Prompt

    name, system, _ = json.loads(model.requests[0].head)
    return Prompt(name, system)


async def _spent(core: AgentFixture, owner: str = ME) -> float:
    return await core.store.read(lambda uow: uow.spend.total(owner, 0.0))


async def test_the_cost_of_a_call_is_settled_with_the_turn(tmp_path: Path) -> None:
    model = FakeModel([LOOK, "done"], usage=Usage(1000, 100, 400))
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0, 0.3))]
        await core.ask("go")
        assert await _spent(core) == pytest.approx(2 * (600 * 3 + 400 * 0.3 + 100 * 15) / 1e6)


async def test_a_spending_limit_is_not_exceeded(tmp_path: Path) -> None:
    model = FakeModel(["fine"], usage=Usage(1000, 1000))
    async with AgentFixture(tmp_path, model, spend_per_day=0.2) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        problems = [(await core.ask("go")).problem for _ in range(15)]
        assert problems[0] == ""
        assert "limit of $0.2" in problems[-1]
        assert await _spent(core) <= 0.2
        await core.later(86_500)
        assert (await core.ask("next day")).problem == ""


async def test_a_model_without_a_price_is_not_called_under_a_limit(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, spend_per_day=1.0) as core:
        assert "the price of fake/one is unknown" in (await core.ask("go")).problem
        assert core.model.requests == []


async def test_an_interrupted_call_is_charged(tmp_path: Path) -> None:
    model = FakeModel(["a b c d e f"], pause_s=0.02)
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: any(isinstance(event, TextWritten) for event in core.heard))
        core.agent.stop((await core.at(CLI)).session_id)
        await turn
        assert await _spent(core) > 0


async def test_a_call_without_reported_usage_is_charged_by_an_estimate(tmp_path: Path) -> None:
    model = FakeModel(["fine"], usage=Usage())
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.ask("漢字" * 3000)
        assert await _spent(core) > 6000 * 3.0 / 1e6


class _SlowHooks:
    """Hooks that delay each model call."""

    @hookimpl
    async def pre_model_call(self, ref: SessionRef, model: str) -> None:
        await asyncio.sleep(0.5)


async def _stopped(core: AgentFixture, when: Callable[[], object]) -> None:
    await core.say("go")
    turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
    await until(when)
    core.agent.stop((await core.at(CLI)).session_id)
    await turn


async def test_a_call_that_was_not_made_costs_nothing(tmp_path: Path) -> None:
    model = FakeModel(["fine"])
    async with AgentFixture(tmp_path, model, plugins=(_SlowHooks(),)) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        reserved: list[float] = []

        def is_reserved() -> bool:
            return bool(reserved) and reserved[-1] > 0

        async def look() -> None:
            while not is_reserved():
                reserved.append(await _spent(core))
                await asyncio.sleep(0.005)

        looking = asyncio.ensure_future(look())
        await _stopped(core, is_reserved)
        await looking
        assert model.requests == []
        assert await _spent(core) == 0.0


async def test_the_reservation_of_a_stopped_turn_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(["fine"])
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        reserve, reserved = core.lifecycle.reserve_spend, asyncio.Event()

        async def reserve_slowly(*given: Any, **more: Any) -> int:
            spend_id = await reserve(*given, **more)
            reserved.set()
            await asyncio.sleep(0.05)
            return spend_id

        monkeypatch.setattr(core.lifecycle, "reserve_spend", reserve_slowly)
        await _stopped(core, reserved.is_set)
        assert model.requests == []
        assert await _spent(core) == 0.0


async def test_reasoning_is_charged_even_without_an_answer(tmp_path: Path) -> None:
    class Thinker(FakeModel):
        async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
            yield Delta(reasoning="hm " * 10_000)
            raise ModelRefused("no")

    model = Thinker()
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(0.0, 15.0))]
        assert (await core.ask("go")).problem == "no"
        assert await _spent(core) > 15.0 * 5_000 / 1e6
