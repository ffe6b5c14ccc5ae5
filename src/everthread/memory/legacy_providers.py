"""Adapt providers that have fewer hooks, or hooks with fewer arguments, than the current contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from everthread.ports.memory import Capability, MemoryProvider, Scorecard

HOOKS = (
    "initialize",
    "system_prompt_block",
    "prefetch",
    "queue_prefetch",
    "sync_turn",
    "get_tool_schemas",
    "handle_tool_call",
    "on_turn_start",
    "on_session_end",
    "on_session_switch",
    "on_pre_compress",
    "on_memory_write",
    "on_delegation",
    "forget",
    "health",
    "shutdown",
)


def as_provider(provider: object) -> MemoryProvider:
    """Return an object as a `MemoryProvider` whose hooks get only the arguments that they accept.

    Signatures are inspected here and nowhere else.
    """
    if isinstance(provider, MemoryProvider) and all(_accepts_all(provider, hook) for hook in HOOKS):
        return provider
    hooks = {hook: _narrow(getattr(provider, hook)) for hook in HOOKS if _overrides(provider, hook)}
    adapted = type(f"Older{type(provider).__name__}", (MemoryProvider,), hooks)()
    adapted.name = str(getattr(provider, "name", "") or type(provider).__name__.lower())
    adapted.capabilities = getattr(
        provider, "capabilities", Capability.RECALL if "prefetch" in hooks else Capability.NONE
    )
    adapted.scorecard = getattr(provider, "scorecard", Scorecard("unknown", "unknown", "unknown"))
    return adapted


def _overrides(provider: object, hook: str) -> bool:
    function = getattr(type(provider), hook, None)
    return callable(function) and function is not getattr(MemoryProvider, hook)


def _accepts_all(provider: MemoryProvider, hook: str) -> bool:
    if not _overrides(provider, hook):
        return True
    today = {p.name for p in _parameters(getattr(MemoryProvider, hook))}
    theirs = _parameters(getattr(type(provider), hook))
    return any(p.kind is p.VAR_KEYWORD for p in theirs) or today <= {p.name for p in theirs}


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as a method that drops the arguments it does not accept. Async stays async."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    takes_all_positions = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positions = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

    def fit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kept = args if takes_all_positions else args[:positions]
        return kept, kwargs if takes_any else {name: value for name, value in kwargs.items() if name in names}

    if inspect.iscoroutinefunction(function):

        async def call_async(_: object, *args: Any, **kwargs: Any) -> Any:
            kept, named = fit(args, kwargs)
            return await function(*kept, **named)

        return call_async

    def call(_: object, *args: Any, **kwargs: Any) -> Any:
        kept, named = fit(args, kwargs)
        return function(*kept, **named)

    return call
