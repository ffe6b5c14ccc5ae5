"""`everthread sessions prune`: delete sessions that ended long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.age import Age
from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, confirm, progress_bar, render
from everthread.domain.text_format import local_time, pluralize, shorten

if TYPE_CHECKING:
    from everthread.lifecycle.archive import Prunable

_SHOWN_MAX = 10


@click.command("prune")
@click.option(
    "--older-than",
    "age_s",
    type=Age(),
    required=True,
    metavar="AGE",
    help="Minimum age since the last activity: 90d, 12h, 2w, 6m (30 days each), 1y.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def prune_sessions(cli: CliContext, age_s: float, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete sessions that ended long ago. This can't be undone; export them first.

    Sessions that others inherit from are kept, and so are those not yet delivered to memory providers. Notes and data
    of memory providers are kept; use forget to delete those too.

    \b
    Examples:
      everthread sessions prune --older-than 90d --dry-run
      everthread sessions prune --older-than 1y --yes
    """
    from everthread.lifecycle.archive import prunable

    async def find(runtime: CliRuntime) -> tuple[Prunable, float]:
        before = runtime.clock.now() - age_s
        return await runtime.store.read(lambda uow: prunable(uow, before)), before

    found, before = cli.read(find, default=(None, 0.0))
    removed = turns = 0
    if found is None or not found.sessions:
        click.echo("Nothing to delete.", err=as_json)
    else:
        click.echo(_summary(found), err=as_json)
        if dry_run:
            click.echo("Dry run: nothing was deleted.", err=as_json)
        else:
            confirm("Delete these permanently?", "Nothing was deleted.", yes=yes, as_json=as_json)
            removed, turns = _remove(cli, found, before)
            click.echo(f"Deleted {pluralize(removed, 'session')} with {pluralize(turns, 'turn')}.", err=as_json)
    ids = [session.id for session in found.sessions] if found else []
    kept = {"needed": found.needed, "untold": found.undelivered} if found else {"needed": 0, "untold": 0}
    data = {"found": ids, "removed": removed, "turns": turns, "kept": kept, "dry_run": dry_run}
    # The text was printed along the way.
    render(Result(data, ""), as_json)


def _remove(cli: CliContext, found: Prunable, before: float) -> tuple[int, int]:

    async def remove(runtime: CliRuntime) -> tuple[int, int]:
        with progress_bar("Deleting", len(found.sessions)) as advance:
            ids = [session.id for session in found.sessions]
            return await runtime.lifecycle.prune(ids, before=before, advance=advance)

    return cli.write(remove)


def _summary(found: Prunable) -> str:
    lines = [f"{pluralize(len(found.sessions), 'session')} ended long enough ago:"]
    for session in found.sessions[:_SHOWN_MAX]:
        title = shorten(session.title or "-")
        lines.append(f"  {session.id}  {title}, last active {local_time(session.active_at)}")
    if len(found.sessions) > _SHOWN_MAX:
        lines.append(f"  and {len(found.sessions) - _SHOWN_MAX} more")
    if found.needed:
        lines.append(f"{pluralize(found.needed, 'session')} of that age kept: other sessions inherit from them.")
    if found.undelivered:
        lines.append(f"{pluralize(found.undelivered, 'session')} of that age kept: not fully delivered to memory yet.")
    return "\n".join(lines)
