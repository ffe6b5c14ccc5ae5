"""The status of memory providers: delivery state from the journal, and their own health checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from everthread.cli.commands.journal import parked_entry
from everthread.cli.output import iso_time
from everthread.domain.text_format import shorten

if TYPE_CHECKING:
    from everthread.cli.context import CliRuntime
    from everthread.memory.delivery import ProviderStatus


PARKED_MAX = 20
"""Parked entries listed per provider; `everthread journal status --limit` lists more."""


async def providers(runtime: CliRuntime) -> list[dict[str, Any]]:
    """Return the status of each provider that is loaded or known to the journal."""
    from everthread.ports.memory import Capability

    declared = {p.name for p in runtime.providers if Capability.HEALTH in p.capabilities}
    health = await runtime.memory.health() if declared else {}
    known = {provider.name: provider for provider in await runtime.memory.journal.status()}
    names = dict.fromkeys((*(provider.name for provider in runtime.providers), *known))
    loaded = set(runtime.memory.names)
    return [_provider(n, known.get(n), n in loaded, health.get(n) if n in declared else None) for n in names]


def unused_providers(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the status of configured providers in a home without a store."""
    return [_provider(name, None, False, None) | {"state": "nothing yet"} for name in names]


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            provider["provider"],
            _waiting(provider),
            str(provider["parked"]),
            provider["state"],
            shorten(provider["health"] or "-"),
            shorten(provider["last_error"] or "-", 60),
        )
        for provider in found
    ]


def _provider(name: str, known: ProviderStatus | None, loaded: bool, health: str | None) -> dict[str, Any]:
    return {
        "provider": name,
        "loaded": loaded,
        "state": _state(known, loaded),
        "waiting": known.lanes.waiting_entries if known else 0,
        "waiting_sessions": known.lanes.waiting_sessions if known else 0,
        "waiting_since": iso_time(known.lanes.oldest_at) if known else None,
        "parked": known.lanes.parked if known else 0,
        "parked_entries": [parked_entry(entry) for entry in known.parked[:PARKED_MAX]] if known else [],
        "paused_until": iso_time(known.breaker_open_until) if known else None,
        "health": health,
        "last_error": known.last_error if known else None,
        "last_error_at": iso_time(known.last_error_at) if known else None,
    }


def _waiting(provider: dict[str, Any]) -> str:
    if not provider["waiting"] or not provider["waiting_since"]:
        return str(provider["waiting"])
    return f"{provider['waiting']} since {provider['waiting_since']}"


def _state(known: ProviderStatus | None, loaded: bool) -> str:
    if known and known.breaker_open_until:
        return f"paused until {iso_time(known.breaker_open_until)}"
    return "ok" if loaded else "not loaded here"
