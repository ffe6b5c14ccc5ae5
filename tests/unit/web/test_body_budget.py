"""The limits of the bytes of request bodies in memory."""

from __future__ import annotations

import pytest

from everthread.web.body_budget import BodyBudget, HeldBody
from everthread.web.errors import HttpError


def budget() -> BodyBudget:
    """Return a budget of 40 bytes for the owner, 40 for strangers, and 80 for guests."""
    return BodyBudget("me", total_max=160)


def held_for(bodies: BodyBudget, owner: str, address: str = "192.0.2.1") -> HeldBody:
    held = HeldBody(bodies, address)
    held.count_for(owner)
    return held


def refused(held: HeldBody, count: int) -> int:
    with pytest.raises(HttpError) as refusal:
        held.add(count)
    assert refusal.value.code == "too_many_bytes"
    assert refusal.value.headers["Retry-After"]
    return refusal.value.status


def test_guests_cannot_shut_out_the_owner_from_one_address() -> None:
    bodies = budget()
    first, second, third = (held_for(bodies, name) for name in ("eve", "bob", "ann"))
    first.add(40)
    assert refused(first, 1) == refused(held_for(bodies, "eve", "192.0.2.9"), 1) == 429
    second.add(40)
    assert refused(third, 1) == 503
    held_for(bodies, "me").add(40)
    assert refused(held_for(bodies, "me"), 1) == 429


def test_one_stranger_cannot_shut_out_other_strangers() -> None:
    bodies = budget()
    HeldBody(bodies, "2001:db8::1").add(5)
    assert refused(HeldBody(bodies, "2001:db8::ffff:1"), 1) == 429
    HeldBody(bodies, "2001:db8:0:1::1").add(5)


def test_strangers_cannot_shut_out_requests_with_a_token() -> None:
    bodies = budget()
    for number in range(8):
        HeldBody(bodies, f"192.0.2.{number}").add(5)
    assert refused(HeldBody(bodies, "192.0.2.8"), 1) == 503
    held_for(bodies, "me").add(40)
    held_for(bodies, "eve").add(40)
    held_for(bodies, "bob").add(40)


def test_released_bytes_are_free_again_and_only_once() -> None:
    bodies = budget()
    held = HeldBody(bodies, "a")
    held.add(5)
    held.add(0)
    refused(held, 1)
    for _ in range(2):
        held.release()
        assert bodies.is_empty
    held.add(5)
    held.count_for("eve")
    assert bodies.is_empty
