"""The cost of a call and its reservation."""

from __future__ import annotations

import pytest

from everthread.domain.spend import Price, cost, max_cost

PRICE = Price(input=3.0, output=15.0, cached=0.3)


def test_cached_tokens_have_their_own_price() -> None:
    assert cost(PRICE, input_tokens=1_000_000, output_tokens=0, cached_tokens=400_000) == pytest.approx(1.8 + 0.12)


def test_cached_tokens_without_their_own_price_cost_the_usual_price() -> None:
    plain = Price(3.0, 15.0)
    assert cost(plain, input_tokens=1000, output_tokens=10, cached_tokens=500) == pytest.approx(0.00315)


def test_a_reservation_is_higher_than_the_cost() -> None:
    text = "Every word of this counts, as it does in real life. " * 50
    aside = max_cost(PRICE, request_bytes=len(text), output_tokens_max=100)
    assert aside > cost(PRICE, input_tokens=len(text) // 4, output_tokens=100)
