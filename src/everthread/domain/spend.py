"""Cost of model calls. Amounts are US dollars, prices US dollars per million tokens."""

from __future__ import annotations

from msgspec import Struct

PER = 1_000_000
BYTES_PER_TOKEN = 3
"""A low estimate, which overestimates tokens: too small a reservation would let spending exceed its limit."""


class Price(Struct, frozen=True):
    """The price of a model."""

    input: float
    output: float
    cached: float | None = None
    """The price of input tokens read from the endpoint's cache. None means the price of other input tokens."""


class SpendEntry(Struct, frozen=True):
    """The ledger entry of one model call. `spend_id` is its reservation, if it had one."""

    model: str
    amount: float
    input_tokens: int = 0
    output_tokens: int = 0
    spend_id: int | None = None


class ModelUsage(Struct, frozen=True):
    """The total usage of one model."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    amount: float
    """The settled amount."""
    reserved: float = 0.0
    """The amount reserved for calls that are running or were interrupted: the maximum that they can add."""


def cost(price: Price, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
    """Return the cost of a call. `input_tokens` includes `cached_tokens`."""
    cached_price = price.input if price.cached is None else price.cached
    fresh = max(input_tokens - cached_tokens, 0)
    return (fresh * price.input + cached_tokens * cached_price + output_tokens * price.output) / PER


def max_cost(price: Price, *, request_bytes: int, output_tokens_max: int) -> float:
    """Return the maximum cost of a call, to reserve before the call."""
    return cost(price, input_tokens=request_bytes // BYTES_PER_TOKEN + 1, output_tokens=output_tokens_max)
