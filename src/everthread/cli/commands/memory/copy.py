"""`everthread memory copy`: deliver earlier sessions to a memory provider."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.exit_codes import REFUSED, RETRY
from everthread.cli.output import Result, progress_bar, render
from everthread.cli.session_output import find_session_id
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.errors import BadInput, NotFound
from everthread.domain.text_format import pluralize

if TYPE_CHECKING:
    from everthread.store.cursors import BackfillCandidate

_SOURCE = "builtin"
_CHARS_PER_TOKEN = 4
_POLL_S = 0.2
_STALL_S_MAX = 120.0
"""Stop waiting after this long without progress; delivery goes on in the background."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The amount of data to copy."""

    sessions: int = 0
    turns: int = 0
    tokens: int = 0
    entries: int = 0

    @classmethod
    def of(cls, found: Collection[BackfillCandidate]) -> CopyPlan:
        tokens = sum(candidate.characters for candidate in found) // _CHARS_PER_TOKEN
        return cls(
            len(found),
            sum(candidate.turns for candidate in found),
            tokens,
            sum(candidate.entries for candidate in found),
        )

    def __str__(self) -> str:
        return (
            f"{pluralize(self.sessions, 'session')} with {pluralize(self.turns, 'turn')}, about {self.tokens:,} tokens"
        )


@click.command()
@click.option("--from", "source", metavar="NAME", default=_SOURCE, show_default=True, help="Source of the data.")
@click.option("--to", "target", metavar="PROVIDER", required=True, help="Memory provider to copy to.")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, shell_complete=complete_sessions)
@click.option("--dry-run", is_flag=True, help="Show what would be copied.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def copy(
    cli: CliContext, source: str, target: str, sessions: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Deliver earlier sessions to a memory provider: all, or the given ones.

    Each session is delivered in order in its current state, without undone or forgotten turns. Sessions that the
    provider has already received are skipped, so the command can be repeated, and it continues after an interruption.
    The provider may charge for the work.

    \b
    Examples:
      everthread memory copy --from builtin --to hindsight --dry-run
      everthread memory copy --to hindsight --yes
      everthread memory copy --to honcho "Trip to Lisbon" 01JZ8Q4T
    """
    if source != _SOURCE:
        raise BadInput(f"data can be copied from {_SOURCE} only, which has everything; use --from {_SOURCE}")

    async def make_plan(runtime: CliRuntime) -> tuple[list[str] | None, CopyPlan, int]:
        _check_provider(runtime, target)
        wanted = [await find_session_id(runtime, text) for text in sessions] or None
        plan = CopyPlan.of(await runtime.memory.backfill.backfill_candidates(target, wanted))
        return wanted, plan, (await runtime.memory.backfill.copying(target))[1]

    wanted, plan, begun = cli.write(make_plan)
    if dry_run or not (plan.sessions or begun):
        _print(target, plan, as_json=as_json, dry_run=dry_run)
        return
    if plan.sessions and not (yes or as_json) and sys.stdin.isatty():
        click.echo(f"{plan} will be delivered to {target}, which may charge for it.", err=True)
        if not click.confirm("Copy them?", default=True, err=True):
            raise click.Abort
    left, parked = cli.write(lambda runtime: _copy(runtime, target, wanted, plan))
    _print(target, plan, as_json=as_json, left=left, parked=parked)
    if left or parked:
        raise click.exceptions.Exit(RETRY if left else REFUSED)


async def _copy(runtime: CliRuntime, target: str, wanted: Collection[str] | None, plan: CopyPlan) -> tuple[int, int]:
    """Copy until everything is delivered or the provider is unavailable; return the entries left and parked."""
    backfill, clock = runtime.memory.backfill, runtime.clock
    total = plan.entries + (await backfill.copying(target))[1]
    done, moved_at = 0, clock.now()
    copied: set[str] = set()
    waiting = 0
    with progress_bar(f"Copying to {target}", total) as advance:
        while True:
            # Sessions with undelivered entries are copied once those have arrived, so look for them again.
            candidates = await backfill.backfill_candidates(target, wanted) if waiting or not copied else ()
            begun = await backfill.copy(target, candidates)
            copied.update(each.session_id for each in candidates)
            at_rest = sum(each.is_at_rest for each in candidates)
            # A session may have got new entries since it was read.
            waiting = sum(each.entries for each in candidates if not each.is_at_rest) + max(at_rest - begun, 0)
            left = waiting + (await backfill.copying(target))[1]
            if total - left > done:
                advance(total - left - done)
                done, moved_at = total - left, clock.now()
            if not left or clock.now() - moved_at > _STALL_S_MAX or await _is_paused(runtime, target):
                return left, await _rejected(runtime, target, copied)
            await clock.sleep(_POLL_S)


async def _is_paused(runtime: CliRuntime, target: str) -> bool:
    return any(row.name == target and row.breaker_open_until for row in await runtime.memory.journal.status())


async def _rejected(runtime: CliRuntime, target: str, sessions: Collection[str]) -> int:
    [status] = [row for row in await runtime.memory.journal.status() if row.name == target]
    return sum(entry.session_id in sessions for entry in status.parked)


def _check_provider(runtime: CliRuntime, target: str) -> None:

    receivers = runtime.memory.journal.receivers
    if target not in receivers:
        known = f"in use are: {', '.join(receivers)}" if receivers else "none is in use"
        raise NotFound(f"memory provider {target[:60]!r} is not in use; {known} (setting memory.providers)")


def _print(
    target: str, plan: CopyPlan, *, as_json: bool, dry_run: bool = False, left: int = 0, parked: int = 0
) -> None:
    data = {
        "from": _SOURCE,
        "to": target,
        "dry_run": dry_run,
        **asdict(plan),
        "left": left,
        "parked": parked,
    }
    if left:
        text = (
            f"{pluralize(left, 'entry', 'entries')} waiting for {target}; delivery continues when it is available.\n"
            "`everthread memory status` shows the progress; run this command again to watch it."
        )
    elif parked:
        text = (
            f"Delivered {plan} to {target}, which rejected {pluralize(parked, 'entry', 'entries')}.\n"
            f"`everthread memory status` shows the errors; `everthread memory retry {target}` tries again."
        )
    elif dry_run and plan.sessions:
        text = f"Would deliver {plan} to {target}."
    elif not plan.sessions:
        text = f"{target} has received everything already."
    else:
        text = f"Delivered {plan} to {target}."
    render(Result(data, text), as_json)
