"""`everthread journal`: what memory providers have been told, what waits, what is parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, limit_option, pass_invocation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everthread.memory.delivery import ProviderStatus
    from everthread.store.cursors import Redelivery


@click.group()
def journal() -> None:
    """See and repair what memory providers are told.

    \b
    Examples:
      everthread journal status
      everthread journal retry honcho
      everthread journal replay honcho "Trip to Lisbon"
    """


@journal.command()
@json_option
@limit_option
@home_option
@pass_invocation
def status(invocation: CliContext, as_json: bool, limit: int) -> None:
    """Show how far every provider has come.

    WAITING is what will be delivered by itself. PARKED is what the provider has rejected: `journal retry` tries it
    again.

    \b
    Examples:
      everthread journal status
      everthread journal status --json | jq '.[] | select(.parked > 0)'
    """
    found = invocation.look(lambda runtime: runtime.memory.journal.status(), nothing=())
    if as_json:
        show.print_json([_as_json(provider, limit) for provider in found])
    elif not found:
        click.echo(f"No memory provider has been used in {invocation.settings.home}.")
    else:
        rows = [
            (
                *(p.name, _waiting(p), str(p.lanes.parked), _state(p)),
                show.shortened(p.last_error or "-", 60),
            )
            for p in found
        ]
        click.echo(show.table(("PROVIDER", "WAITING", "PARKED", "STATE", "LAST ERROR"), rows))
        show_parked([(provider.name, parked_entry(entry)) for provider in found for entry in provider.parked], limit)


@journal.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=completing.sessions)
@json_option
@home_option
@pass_invocation
def retry(invocation: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Try again what PROVIDER has rejected, in one SESSION (its id, beginning of it, or title) or all.

    \b
    Examples:
      everthread journal retry honcho
      everthread journal retry honcho 01JZ8Q4T
    """
    retry_parked(invocation, provider, session, as_json=as_json)


def retry_parked(invocation: CliContext, provider: str, session: str | None, *, as_json: bool) -> None:
    """Have what is parked delivered again, and say how much it is."""

    async def work(runtime: CliRuntime) -> tuple[int, str | None]:
        session_id = await _resolved(runtime, session)
        return await runtime.memory.journal.retry(provider, session_id), session_id

    (count, session_id), _ = invocation.act(work)
    if as_json:
        show.print_json({"provider": provider, "session": session_id, "entries": count})
    elif count == 0:
        click.echo(f"Nothing is parked for {provider}.")
    else:
        what = show.counted(count, "entry", "entries")
        click.echo(f"{what} will be delivered to {provider} again; `everthread journal status` shows how it goes.")


@journal.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=completing.sessions)
@json_option
@home_option
@pass_invocation
def replay(invocation: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Deliver everything to PROVIDER from the start again, of one SESSION (its id, beginning of it, or title) or all.

    A provider may do its work anew, and charge for it.

    \b
    Examples:
      everthread journal replay honcho "Trip to Lisbon"
      everthread journal replay honcho
    """

    async def work(runtime: CliRuntime) -> tuple[int, str | None]:
        session_id = await _resolved(runtime, session)
        return await runtime.memory.journal.replay(provider, session_id), session_id

    (count, session_id), _ = invocation.act(work)
    if as_json:
        show.print_json({"provider": provider, "session": session_id, "sessions": count})
    elif count == 0:
        click.echo(f"There is nothing to deliver to {provider}.")
    else:
        what = show.counted(count, "session")
        click.echo(f"{what} will be delivered to {provider} again; `everthread journal status` shows how it goes.")


async def _resolved(runtime: CliRuntime, session: str | None) -> str | None:
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    if session is None:
        return None
    return (await runtime.store.read(lambda uow: find_session_of_any_owner(uow, session))).id


def _waiting(provider: ProviderStatus) -> str:
    lanes = provider.lanes
    if not lanes.waiting_entries:
        return "0"
    return f"{lanes.waiting_entries} in {show.counted(max(lanes.waiting_sessions, 1), 'session')}"


def _state(provider: ProviderStatus) -> str:
    until = provider.breaker_open_until
    return "ok" if until is None else f"paused until {show.local_time(until)}"


def parked_entry(entry: Redelivery) -> dict[str, Any]:
    return {"session": entry.session_id, "entry": entry.seq, "error": entry.error}


def show_parked(parked: Sequence[tuple[str, Mapping[str, Any]]], limit: int) -> None:
    """Providers, and what each has rejected."""
    if not parked:
        return
    rows = [(name, p["session"], str(p["entry"]), show.shortened(p["error"], 60)) for name, p in parked[:limit]]
    click.echo("\nParked:")
    click.echo(show.table(("PROVIDER", "SESSION", "ENTRY", "ERROR"), rows))
    if len(parked) > limit:
        click.echo(f"... and {len(parked) - limit} more (--limit)")


def _as_json(provider: ProviderStatus, limit: int) -> dict[str, Any]:
    return {
        "provider": provider.name,
        "waiting_entries": provider.lanes.waiting_entries,
        "waiting_sessions": provider.lanes.waiting_sessions,
        "parked": provider.lanes.parked,
        "paused_until": show.iso_time(provider.breaker_open_until),
        "last_error": provider.last_error,
        "last_error_at": show.iso_time(provider.last_error_at),
        "parked_entries": [parked_entry(entry) for entry in provider.parked[:limit]],
    }
