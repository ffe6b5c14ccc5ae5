"""`everthread memory copy`: handing a memory provider what was said before it was there."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.store.cursors import ToCopy

_SOURCE = "builtin"
_CHARS_PER_TOKEN = 4
_LOOK_S = 0.2
_STILL_S_MAX = 120.0
"""Nothing has moved for this long: the rest is left to go on by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a copy comes to."""

    sessions: int = 0
    entries: int = 0
    turns: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, found: Collection[ToCopy]) -> Plan:
        tokens = sum(one.characters for one in found) // _CHARS_PER_TOKEN
        return cls(len(found), sum(one.entries for one in found), sum(one.turns for one in found), tokens)

    def __str__(self) -> str:
        return (
            f"{show.counted(self.sessions, 'session')} with {show.counted(self.turns, 'turn')}, "
            f"about {self.tokens:,} tokens"
        )


@click.command()
@click.option("--from", "source", metavar="NAME", default=_SOURCE, show_default=True, help="Where it is now.")
@click.option("--to", "target", metavar="PROVIDER", required=True, help="Who is to be told.")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, shell_complete=completing.sessions)
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and copy nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def copy(
    invocation: CliContext, source: str, target: str, sessions: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Tell a memory provider what was said before it was there: all sessions, or those named.

    Each session is told in order, with its beginning and its closes, as it stands now: without what was taken back or
    forgotten. What the provider was told from the beginning is left alone, so this can be run again at any time, and
    goes on where it was interrupted. A provider may charge for the work.

    \b
    Examples:
      everthread memory copy --from builtin --to hindsight --dry-run
      everthread memory copy --to hindsight --yes
      everthread memory copy --to honcho "Trip to Lisbon" 01JZ8Q4T
    """
    from everthread.cli.exit_codes import REFUSED, RETRY
    from everthread.domain.errors import BadInput

    if source != _SOURCE:
        raise BadInput(
            f"everything that a provider was told is kept here, so it is copied from {_SOURCE}: --from {_SOURCE}"
        )

    async def look(runtime: CliRuntime) -> tuple[list[str] | None, Plan, int]:
        _refuse_unused(runtime, target)
        wanted = await _resolved(runtime, sessions)
        plan = Plan.of(await runtime.memory.journal.to_copy(target, wanted))
        return wanted, plan, (await runtime.memory.journal.copying(target))[1]

    (wanted, plan, begun), _ = invocation.act(look)
    if dry_run or not (plan.sessions or begun):
        _tell(target, plan, as_json=as_json, dry_run=dry_run)
        return
    if plan.sessions and not (yes or as_json) and sys.stdin.isatty():
        click.echo(f"{plan} will be told to {target}, which may charge for it.", err=True)
        if not click.confirm("Copy them?", default=True, err=True):
            raise click.Abort
    left, parked = invocation.act(lambda runtime: _carried_out(runtime, target, wanted, plan))[0]
    _tell(target, plan, as_json=as_json, left=left, parked=parked)
    if left or parked:
        raise click.exceptions.Exit(RETRY if left else REFUSED)


async def _carried_out(runtime: CliRuntime, target: str, wanted: Collection[str] | None, plan: Plan) -> tuple[int, int]:
    """Copy until everything is told, or the provider does not take it now; how many entries are left, and how many of
    those sessions it has rejected.
    """
    from everthread.cli.output import bar

    journal, clock = runtime.memory.journal, runtime.clock
    whole = plan.entries + (await journal.copying(target))[1]
    done, moved_at = 0, clock.now()
    copied: set[str] = set()
    waiting = 0
    with bar(f"Telling {target}", whole) as advance:
        while True:
            # Sessions of which something waited are taken up when it has arrived. All are looked through for them.
            open_ones = await journal.to_copy(target, wanted) if waiting or not copied else ()
            begun = await journal.copy(target, open_ones)
            copied.update(one.session_id for one in open_ones)
            at_rest = sum(one.is_at_rest for one in open_ones)
            # Something may have come to one since it was looked at.
            waiting = sum(one.entries for one in open_ones if not one.is_at_rest) + max(at_rest - begun, 0)
            left = waiting + (await journal.copying(target))[1]
            if whole - left > done:
                advance(whole - left - done)
                done, moved_at = whole - left, clock.now()
            if not left or clock.now() - moved_at > _STILL_S_MAX or await _is_paused(runtime, target):
                return left, await _rejected(runtime, target, copied)
            await clock.sleep(_LOOK_S)


async def _is_paused(runtime: CliRuntime, target: str) -> bool:
    return any(row.name == target and row.breaker_open_until for row in await runtime.memory.journal.status())


async def _rejected(runtime: CliRuntime, target: str, sessions: Collection[str]) -> int:
    [status] = [row for row in await runtime.memory.journal.status() if row.name == target]
    return sum(entry.session_id in sessions for entry in status.parked)


def _refuse_unused(runtime: CliRuntime, target: str) -> None:
    from everthread.domain.errors import NotFound

    told = runtime.memory.journal.told
    if target not in told:
        known = f"those that are told are: {', '.join(told)}" if told else "none is used"
        raise NotFound(f"{target[:60]!r} is no memory provider that is told anything here; {known} (memory.providers)")


async def _resolved(runtime: CliRuntime, sessions: tuple[str, ...]) -> list[str] | None:
    """The ids of the sessions that are named; None is all."""
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    if not sessions:
        return None
    return [
        (await runtime.store.read(lambda uow, text=text: find_session_of_any_owner(uow, text))).id for text in sessions
    ]


def _tell(target: str, plan: Plan, *, as_json: bool, dry_run: bool = False, left: int = 0, parked: int = 0) -> None:
    if as_json:
        told: dict[str, Any] = {"from": _SOURCE, "to": target, "dry_run": dry_run, "sessions": plan.sessions}
        told |= {"turns": plan.turns, "tokens": plan.tokens, "entries": plan.entries}
        show.print_json(told | {"left": left, "parked": parked})
    elif left:
        waits = show.counted(left, "entry", "entries")
        click.echo(f"{waits} wait for {target}, and are told by themselves when it is there again.")
        click.echo("`everthread memory status` shows how it goes; run this again to watch it.")
    elif parked:
        rejected = show.counted(parked, "entry", "entries")
        click.echo(f"{target} has been told {plan}, and has rejected {rejected} of it.")
        click.echo(f"`everthread memory status` says why; `everthread memory retry {target}` tries again.")
    elif dry_run and plan.sessions:
        click.echo(f"{plan} would be told to {target}.")
    elif not plan.sessions:
        click.echo(f"{target} has been told everything already.")
    else:
        click.echo(f"{target} has been told {plan}.")
