"""Requests to Honcho: batches, statuses and errors."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.honcho import FakeHoncho
from tests.unit.adapters.memory.honcho.deliveries import ANN, honcho, ref, say

from everthread.adapters.memory.honcho.codec import user_peer
from everthread.domain.errors import Rejected, Unavailable
from everthread.memory.provider_calls import Caller


async def test_a_long_turn_is_split_and_sent_in_batches() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            long = "word " * 520_000
            await say(provider, long)
            await say(provider, long)
        own = [one for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert "".join(one["content"] for one in own) == long
        assert len(own) > 100
        assert [one["metadata"]["part"] for one in fake.messages] == list(range(len(own) + 1))


async def test_errors_name_the_problem_and_never_the_key() -> None:
    with FakeHoncho(key="k-secret-1234") as fake:
        async with honcho(fake, api_key="k-secret-1234") as provider:
            assert await provider.health() == "ok"
        async with honcho(fake, api_key="k-wrong-9999") as provider:
            said = await provider.health()
            assert "401" in said
            assert "k-wrong" not in said
            with pytest.raises(Unavailable):
                await say(provider, "I keep bees")
    async with honcho(fake) as provider:
        assert "can't be reached" in await provider.health()


@pytest.mark.parametrize(
    ("status", "error"), [(429, Unavailable), (500, Unavailable), (409, Unavailable), (413, Rejected)]
)
async def test_each_status_is_translated(status: int, error: type[Exception]) -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            fake.fail_next(status=status)
            with pytest.raises(error):
                await say(provider, "I keep bees")


async def test_an_error_does_not_quote_the_conversation() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            fake.reject_next()
            with pytest.raises(Rejected) as failure:
                await say(provider, "larkspur")
        assert "larkspur" not in str(failure.value)


async def test_an_unreadable_response_is_unavailable() -> None:
    class Nonsense(FakeHoncho):
        def _answer(self, request: Any) -> Any:
            return (200, ["what?"]), False

    with Nonsense() as fake:
        async with honcho(fake) as provider:
            caller = Caller(provider)
            with pytest.raises(Unavailable, match="can't be read"):
                await caller.call("prefetch", "bees", ref=ref("s1"), limit=3, timeout_s=5)
