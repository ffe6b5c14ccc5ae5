"""`everthread sessions prune`: remove old conversations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

if TYPE_CHECKING:
    from everthread.lifecycle.archive import Prunable

_UNIT_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_AGE = re.compile(r"([0-9]{1,6})([hdwmy])")
_SHOWN_MAX = 10


class _Age(click.ParamType[float]):
    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _AGE.fullmatch(str(value))
        if match is None or int(match[1]) == 0:
            self.fail(f"{str(value)[:40]!r} is no age; say 90d, or 12h, 2w, 6m, 1y")
        return float(int(match[1]) * _UNIT_S[match[2]])


@click.command("prune")
@click.option(
    "--older-than",
    "age_s",
    type=_Age(),
    required=True,
    metavar="AGE",
    help="Ended, and last active, so long ago: 90d, 12h, 2w, 6m (of 30 days), 1y.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def prune_sessions(invocation: CliContext, age_s: float, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove sessions that ended long ago from this store. There is no way back: export them first.

    Only sessions that have ended go. What another session still shows is kept, and so is what memory providers have not
    been told yet. What they have learned stays with them, and notes stay: to take those back as well, use forget.

    \b
    Examples:
      everthread sessions prune --older-than 90d --dry-run
      everthread sessions prune --older-than 1y --yes
    """
    from everthread.lifecycle.archive import prunable

    async def look(runtime: CliRuntime) -> tuple[Prunable, float]:
        before = runtime.clock.now() - age_s
        return await runtime.store.read(lambda uow: prunable(uow, before)), before

    found, before = invocation.look(look, nothing=(None, 0.0))
    removed = turns = 0
    if found is None or not found.sessions:
        click.echo("There is nothing to remove.", err=as_json)
    else:
        click.echo(_words(found), err=as_json)
        if dry_run:
            click.echo("Nothing was removed: this was a dry run.", err=as_json)
        elif not yes and not click.confirm("Remove these for good?", err=as_json):
            click.echo("Nothing was removed.", err=as_json)
            raise click.exceptions.Exit(REFUSED)
        else:
            removed, turns = _remove(invocation, found, before)
            click.echo(f"Removed {show.counted(removed, 'session')} with {show.counted(turns, 'turn')}.", err=as_json)
    if as_json:
        listed = [session.id for session in found.sessions] if found else []
        kept = {"needed": found.needed, "untold": found.untold} if found else {"needed": 0, "untold": 0}
        show.print_json({"found": listed, "removed": removed, "turns": turns, "kept": kept, "dry_run": dry_run})


def _remove(invocation: CliContext, found: Prunable, before: float) -> tuple[int, int]:
    from everthread.cli.output import bar

    async def remove(runtime: CliRuntime) -> tuple[int, int]:
        with bar("Removing", len(found.sessions)) as advance:
            ids = [session.id for session in found.sessions]
            return await runtime.lifecycle.prune(ids, before=before, advance=advance)

    return invocation.act(remove)[0]


def _words(found: Prunable) -> str:
    lines = [f"{show.counted(len(found.sessions), 'session')} ended long enough ago:"]
    for session in found.sessions[:_SHOWN_MAX]:
        title = show.shortened(session.title or "-")
        lines.append(f"  {session.id}  {title}, last active {show.local_time(session.active_at)}")
    if len(found.sessions) > _SHOWN_MAX:
        lines.append(f"  and {len(found.sessions) - _SHOWN_MAX} more")
    if found.needed:
        lines.append(f"{show.counted(found.needed, 'session')} as old are kept: others grew out of them.")
    if found.untold:
        lines.append(f"{show.counted(found.untold, 'session')} as old are kept: memory is not told all of them yet.")
    return "\n".join(lines)
