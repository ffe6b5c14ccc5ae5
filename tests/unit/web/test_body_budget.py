"""The limits of the bytes of request bodies in memory."""

from __future__ import annotations

import pytest

from everthread.web.body_budget import BodyBudget, HeldBody
from everthread.web.errors import HttpError


def budget() -> BodyBudget:
    return BodyBudget(total_max=100, address_max=60, unsigned_max=40)


def refused(held: HeldBody, count: int, *, signed: bool) -> int:
    with pytest.raises(HttpError) as refusal:
        held.add(count, signed=signed)
    assert refusal.value.code == "too_many_bytes"
    assert refusal.value.headers["Retry-After"]
    return refusal.value.status


def test_one_address_cannot_hold_all_bytes() -> None:
    bodies = budget()
    first, second, other = HeldBody(bodies, "a"), HeldBody(bodies, "a"), HeldBody(bodies, "b")
    first.add(50, signed=True)
    assert refused(second, 11, signed=True) == 429
    second.add(10, signed=True)
    other.add(40, signed=True)
    assert refused(other, 1, signed=True) == 503


def test_strangers_cannot_shut_out_requests_with_a_token() -> None:
    bodies = budget()
    strangers = [HeldBody(bodies, str(number)) for number in range(5)]
    for stranger in strangers[:4]:
        stranger.add(10, signed=False)
    assert refused(strangers[4], 1, signed=False) == 503
    HeldBody(bodies, "b").add(60, signed=True)


def test_released_bytes_are_free_again_and_only_once() -> None:
    bodies = budget()
    held = HeldBody(bodies, "a")
    held.add(20, signed=False)
    held.add(30, signed=True)
    held.add(0, signed=True)
    refused(held, 11, signed=True)
    for _ in range(2):
        held.release()
        assert bodies.is_empty
