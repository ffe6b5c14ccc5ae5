"""`everthread journal`: the delivery of log entries to memory providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, common_options, list_options
from everthread.cli.output import Result, iso_time, render, table
from everthread.cli.session_output import find_session_id
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.text_format import local_time, pluralize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from everthread.memory.delivery import ProviderStatus
    from everthread.store.cursors import Redelivery


@click.group()
def journal() -> None:
    """Inspect and repair delivery to memory providers.

    \b
    Examples:
      everthread journal status
      everthread journal retry honcho
      everthread journal replay honcho "Trip to Lisbon"
    """


@journal.command()
@list_options
def status(cli: CliContext, as_json: bool, limit: int) -> None:
    """Show the delivery state of every memory provider.

    WAITING entries are delivered automatically. PARKED entries were rejected by the provider; `journal retry`
    delivers them again.

    \b
    Examples:
      everthread journal status
      everthread journal status --json | jq '.[] | select(.parked > 0)'
    """
    found = cli.read(lambda runtime: runtime.memory.journal.status(), default=())

    def text() -> Iterator[str]:
        headings = ("PROVIDER", "WAITING", "PARKED", "STATE", "LAST ERROR")
        yield table(
            headings,
            [_row(provider) for provider in found],
            empty=f"No memory provider has been used in {cli.settings.home}.",
        )
        yield from parked_lines([(p.name, parked_entry(entry)) for p in found for entry in p.parked], limit)

    render(Result(lambda: [_as_json(provider, limit) for provider in found], text), as_json)


@journal.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=complete_sessions)
@common_options
def retry(cli: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Deliver parked entries to PROVIDER again, of one SESSION (id, prefix of an id, or title) or of all.

    \b
    Examples:
      everthread journal retry honcho
      everthread journal retry honcho 01JZ8Q4T
    """
    retry_parked(cli, provider, session, as_json=as_json)


def retry_parked(cli: CliContext, provider: str, session: str | None, *, as_json: bool) -> None:
    """Deliver parked entries again and print their number."""

    async def work(runtime: CliRuntime) -> tuple[int, str | None]:
        session_id = await find_session_id(runtime, session) if session is not None else None
        return await runtime.memory.journal.retry(provider, session_id), session_id

    count, session_id = cli.write(work)
    text = (
        _redelivery(provider, pluralize(count, "entry", "entries")) if count else f"Nothing is parked for {provider}."
    )
    render(Result({"provider": provider, "session": session_id, "entries": count}, text), as_json)


@journal.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=complete_sessions)
@common_options
def replay(cli: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Deliver everything to PROVIDER again, of one SESSION (id, prefix of an id, or title) or of all.

    The provider may process everything again and charge for it.

    \b
    Examples:
      everthread journal replay honcho "Trip to Lisbon"
      everthread journal replay honcho
    """

    async def work(runtime: CliRuntime) -> tuple[int, str | None]:
        session_id = await find_session_id(runtime, session) if session is not None else None
        return await runtime.memory.journal.replay(provider, session_id), session_id

    count, session_id = cli.write(work)
    text = _redelivery(provider, pluralize(count, "session")) if count else f"Nothing to deliver to {provider}."
    render(Result({"provider": provider, "session": session_id, "sessions": count}, text), as_json)


def _redelivery(provider: str, what: str) -> str:
    return f"{what} will be delivered to {provider} again. `everthread journal status` shows the progress."


def _row(provider: ProviderStatus) -> tuple[str, ...]:
    error = shorten(provider.last_error or "-", 60)
    return provider.name, _waiting(provider), str(provider.lanes.parked), _state(provider), error


def _waiting(provider: ProviderStatus) -> str:
    lanes = provider.lanes
    if not lanes.waiting_entries:
        return "0"
    return f"{lanes.waiting_entries} in {pluralize(max(lanes.waiting_sessions, 1), 'session')}"


def _state(provider: ProviderStatus) -> str:
    until = provider.breaker_open_until
    return "ok" if until is None else f"paused until {local_time(until)}"


def parked_entry(entry: Redelivery) -> dict[str, Any]:
    return {"session": entry.session_id, "entry": entry.seq, "error": entry.error}


def parked_lines(parked: Sequence[tuple[str, Mapping[str, Any]]], limit: int) -> Iterator[str]:
    """List provider names with their parked entries."""
    if not parked:
        return
    rows = [(name, p["session"], str(p["entry"]), shorten(p["error"], 60)) for name, p in parked[:limit]]
    yield "\nParked:"
    yield table(("PROVIDER", "SESSION", "ENTRY", "ERROR"), rows)
    if len(parked) > limit:
        yield f"... and {len(parked) - limit} more (--limit)"


def _as_json(provider: ProviderStatus, limit: int) -> dict[str, Any]:
    return {
        "provider": provider.name,
        "waiting_entries": provider.lanes.waiting_entries,
        "waiting_sessions": provider.lanes.waiting_sessions,
        "parked": provider.lanes.parked,
        "paused_until": iso_time(provider.breaker_open_until),
        "last_error": provider.last_error,
        "last_error_at": iso_time(provider.last_error_at),
        "parked_entries": [parked_entry(entry) for entry in provider.parked[:limit]],
    }
