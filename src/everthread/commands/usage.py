"""`/usage`: what the model calls came to."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.commands.context import CommandContext, CommandResult, session_here
from everthread.domain.spend import Used
from everthread.lifecycle.spend import MONTH_DAYS

_MODELS_MAX = 8


async def usage(desk: CommandContext, _: str) -> CommandResult:
    found = await desk.lifecycle.usage(desk.owner, await session_here(desk))
    lines = [
        *_part("This conversation", found.conversation),
        *_part("The last 24 hours", found.day),
        *_part(f"The last {MONTH_DAYS} days", found.month),
        _limit(desk.spend_per_day, sum(used.amount + used.reserved for used in found.day)),
    ]
    return CommandResult("\n".join(lines))


def _part(heading: str, models: Sequence[Used]) -> list[str]:
    if not models:
        return [f"{heading}: nothing."]
    lines = [f"{heading}: {_in_words(_sum(models))}"]
    if len(models) > 1:
        width = max(len(used.model) for used in models[:_MODELS_MAX])
        lines += [f"  {used.model:<{width}}  {_in_words(used)}" for used in models[:_MODELS_MAX]]
        lines += [f"  and {len(models) - _MODELS_MAX} more models"] if len(models) > _MODELS_MAX else []
    else:
        lines[0] += f", all of {models[0].model}"
    return lines


def _sum(models: Sequence[Used]) -> Used:
    return Used(
        "",
        sum(used.calls for used in models),
        sum(used.input_tokens for used in models),
        sum(used.output_tokens for used in models),
        sum(used.amount for used in models),
        sum(used.reserved for used in models),
    )


def _in_words(used: Used) -> str:
    calls = f"{used.calls:,} call{'' if used.calls == 1 else 's'}"
    tokens = f"{used.input_tokens:,} tokens read, {used.output_tokens:,} written"
    # A model without a price is asked for nothing, or for money that nobody knows of.
    cost = dollars(used.amount) if used.amount or used.reserved else "no cost known"
    more = f" (and at most {dollars(used.reserved)} for calls under way or cut off)" if used.reserved else ""
    return f"{calls}, {tokens}, {cost}{more}"


def dollars(amount: float) -> str:
    """To the cent; of less than a dollar, to a hundredth of one."""
    if 0 < amount < 0.0001:
        return "less than $0.0001"
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def _limit(limit: float | None, spent: float) -> str:
    if limit is None:
        return "There is no limit; `spend_per_day` under [limits] in config.toml sets one."
    left = max(limit - spent, 0.0)
    return f"The limit is {dollars(limit)} in 24 hours; {dollars(left)} of it is left."
