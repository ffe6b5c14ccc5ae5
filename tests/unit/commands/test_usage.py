"""`/usage`: tokens, cost and the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import CommandFixture
from tests.runtime import CLI, ME, TELEGRAM

from everthread.agent.model_call import ModelChoice
from everthread.domain.boundary import Branch
from everthread.domain.spend import Price


async def test_usage_shows_the_session_the_day_and_the_month(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        console.choices = [ModelChoice("lab/big", "big", console.model, Price(10_000, 100_000))]
        await console.ask("long ago")
        console.clock.advance(40 * 86_400)
        await console.order("/new")
        await console.ask("last week")
        console.clock.advance(7 * 86_400)
        await console.order("/new")
        await console.ask("today")
        console.choices = [ModelChoice("lab/free", "free", console.model)]
        await console.ask("today as well")
        await console.ask("a secret", TELEGRAM, owner="them")
        text = (await console.order("/usage", spend_per_day=5.0)).text
        assert text.splitlines() == [
            "This session: 2 calls, 200 tokens read, 20 written, $2.00",
            "  lab/big   1 call, 100 tokens read, 10 written, $2.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The last 24 hours: 2 calls, 200 tokens read, 20 written, $2.00",
            "  lab/big   1 call, 100 tokens read, 10 written, $2.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The last 30 days: 3 calls, 300 tokens read, 30 written, $4.00",
            "  lab/big   2 calls, 200 tokens read, 20 written, $4.00",
            "  lab/free  1 call, 100 tokens read, 10 written, no cost known",
            "The limit is $5.00 in 24 hours. $3.00 is left.",
        ]
        assert "$0.00 is left" in (await console.order("/usage", spend_per_day=1.0)).text
        await console.order("/new")
        assert (await console.order("/usage")).text.startswith("This session: nothing.\n")


async def test_usage_includes_the_session_before_its_compression(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        await console.ask("one")
        await console.lifecycle.cross(CLI, await console.compression(CLI), owner=ME)
        await console.ask("two")
        assert "This session: 2 calls" in (await console.order("/usage")).text
        # The parent of a branch is another conversation.
        await console.lifecycle.cross(CLI, Branch(), owner=ME)
        assert "This session: nothing" in (await console.order("/usage")).text


async def test_usage_works_without_a_session_and_without_a_limit(tmp_path: Path) -> None:
    async with CommandFixture(tmp_path) as console:
        text = (await console.order("/usage")).text
        assert text.startswith("This session: nothing.")
        assert "There is no limit" in text


@pytest.mark.parametrize(("price", "told"), [(4, "$0.0004"), (0.1, "less than $0.0001"), (20_000, "$2.20")])
async def test_a_small_amount_is_not_shown_as_zero(tmp_path: Path, price: float, told: str) -> None:
    async with CommandFixture(tmp_path) as console:
        console.choices = [ModelChoice("lab/cheap", "cheap", console.model, Price(price, price))]
        await console.ask("hello")
        text = (await console.order("/usage")).text
        assert f"This session: 1 call, 100 tokens read, 10 written, {told}, all of lab/cheap" in text
