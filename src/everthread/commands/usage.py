"""`/usage`: tokens and cost of model calls."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.commands.context import CommandContext, CommandResult, current_session
from everthread.domain.spend import ModelUsage
from everthread.lifecycle.spend import MONTH_DAYS

_MODELS_MAX = 8


async def usage(context: CommandContext, _: str) -> CommandResult:
    found = await context.runtime.lifecycle.usage(context.owner, await current_session(context))
    limit = context.runtime.settings.spend_per_day_of(context.owner)
    lines = [
        *_section("This session", found.conversation),
        *_section("The last 24 hours", found.day),
        *_section(f"The last {MONTH_DAYS} days", found.month),
        _limit(limit, sum(used.amount + used.reserved for used in found.day)),
    ]
    return CommandResult("\n".join(lines))


def _section(heading: str, models: Sequence[ModelUsage]) -> list[str]:
    if not models:
        return [f"{heading}: nothing."]
    lines = [f"{heading}: {_format(_total(models))}"]
    if len(models) > 1:
        width = max(len(used.model) for used in models[:_MODELS_MAX])
        lines += [f"  {used.model:<{width}}  {_format(used)}" for used in models[:_MODELS_MAX]]
        lines += [f"  and {len(models) - _MODELS_MAX} more models"] if len(models) > _MODELS_MAX else []
    else:
        lines[0] += f", all of {models[0].model}"
    return lines


def _total(models: Sequence[ModelUsage]) -> ModelUsage:
    return ModelUsage(
        "",
        sum(used.calls for used in models),
        sum(used.input_tokens for used in models),
        sum(used.output_tokens for used in models),
        sum(used.amount for used in models),
        sum(used.reserved for used in models),
    )


def _format(used: ModelUsage) -> str:
    calls = f"{used.calls:,} call{'' if used.calls == 1 else 's'}"
    tokens = f"{used.input_tokens:,} tokens read, {used.output_tokens:,} written"
    # A model without a price is free, or its price is unknown.
    cost = dollars(used.amount) if used.amount or used.reserved else "no cost known"
    more = f" (and up to {dollars(used.reserved)} for unfinished calls)" if used.reserved else ""
    return f"{calls}, {tokens}, {cost}{more}"


def dollars(amount: float) -> str:
    """Format dollars with cents; below a dollar, with hundredths of a cent."""
    if 0 < amount < 0.0001:
        return "less than $0.0001"
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def _limit(limit: float | None, spent: float) -> str:
    if limit is None:
        return "There is no limit. Set one with `spend_per_day` under [limits] in config.toml."
    left = max(limit - spent, 0.0)
    return f"The limit is {dollars(limit)} in 24 hours. {dollars(left)} is left."
