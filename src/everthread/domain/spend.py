"""What a model call costs. Amounts are dollars, prices dollars per million tokens."""

from __future__ import annotations

from msgspec import Struct

PER = 1_000_000
BYTES_PER_TOKEN = 3
"""Errs on the high side: a reservation that is too small would let a limit be passed."""


class Price(Struct, frozen=True):
    input: float
    output: float
    cached: float | None = None
    """For tokens that the endpoint had in its cache; as the others if not given."""


class Spent(Struct, frozen=True):
    """One model call, as the ledger keeps it. `spend_id` is its reservation, if it had one."""

    model: str
    amount: float
    input_tokens: int = 0
    output_tokens: int = 0
    spend_id: int | None = None


class Used(Struct, frozen=True):
    """What a model was used for altogether."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    amount: float
    """What was settled."""
    reserved: float = 0.0
    """What is set aside for calls that have not ended, or were cut off: at most this much comes on top."""


def cost(price: Price, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
    cached_price = price.input if price.cached is None else price.cached
    fresh = max(input_tokens - cached_tokens, 0)
    return (fresh * price.input + cached_tokens * cached_price + output_tokens * price.output) / PER


def at_most(price: Price, *, request_bytes: int, output_tokens_max: int) -> float:
    """What a call can cost before it is known what it does cost."""
    return cost(price, input_tokens=request_bytes // BYTES_PER_TOKEN + 1, output_tokens=output_tokens_max)
