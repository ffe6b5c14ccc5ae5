"""`everthread cron`: tasks that the gateway runs on a schedule."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everthread.cli.commands.cron.add import add
from everthread.cli.commands.cron.output import (
    format_delivery,
    format_next,
    format_result,
    format_time,
    run_as_json,
    task_as_json,
)
from everthread.cli.context import CliContext, CliRuntime, common_options, owner_option
from everthread.cli.output import Result, render, table
from everthread.domain.errors import EverthreadError
from everthread.domain.text_format import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from everthread.domain.schedule import Occurrence, Schedule
    from everthread.lifecycle.schedules import OccurrenceResult
    from everthread.store.unit_of_work import UnitOfWork

RUNS_SHOWN = 10


@click.group()
def cron() -> None:
    """Schedule prompts for the agent.

    A task is a prompt and a schedule. When it is due, the gateway runs the prompt in a session of its own and delivers
    the answer to a chat, a file or a webhook.

    \b
    Examples:
      everthread cron add "0 8 * * 1-5" "Say good morning" --zone Europe/Berlin --to telegram:42
      everthread cron add "every 2h" "Anything new on the list?" --to append:list.txt
      everthread cron list
      everthread cron run say-good-morning
    """


cron.add_command(add)


def _task_command(verb: str) -> Callable[[Callable[..., None]], click.Command]:
    """Register a command on the task with a name and an owner."""
    return lambda run: cron.command(verb)(click.argument("name")(owner_option(common_options(run))))


@cron.command("list")
@common_options
def list_tasks(cli: CliContext, as_json: bool) -> None:
    """List tasks with their next run and the result of the last one.

    \b
    Examples:
      everthread cron list
      everthread cron list --json | jq -r '.[] | select(.last.state == "failed") | .name'
    """
    found = cli.read(lambda runtime: runtime.scheduling.all(), default=())
    owner = cli.settings.owner

    def text() -> str:
        rows = [
            (
                schedule.name if schedule.owner == owner else f"{schedule.name} ({schedule.owner})",
                schedule.recurrence,
                format_next(schedule).removeprefix("next: "),
                str(schedule.target),
                shorten(format_result(last)),
            )
            for schedule, last in found
        ]
        empty = "No tasks yet. Add one with everthread cron add."
        return table(("NAME", "WHEN", "NEXT", "TO", "LAST"), rows, empty=empty)

    render(Result([task_as_json(schedule, last) for schedule, last in found], text), as_json)


@_task_command("show")
def show_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Show task NAME and its last runs.

    \b
    Examples:
      everthread cron show say-good-morning
      everthread cron show say-good-morning --json | jq '.times[0]'
    """

    async def read(runtime: CliRuntime) -> tuple[Schedule, list[tuple[Occurrence, str]]]:
        schedule = await _find(runtime, owner, name)
        return schedule, await runtime.store.read(
            lambda uow: [(run, _reply_state(uow, run)) for run in uow.schedules.occurrences(schedule.id, RUNS_SHOWN)]
        )

    schedule, runs = cli.read_existing(read, name)

    def text() -> Iterator[str]:
        yield f"{schedule.name}: {schedule.recurrence} ({schedule.zone}), to {schedule.target}"
        yield f"  prompt: {shorten(schedule.prompt, 80)}"
        yield f"  {format_next(schedule)}; missed runs: {schedule.missed.value}"
        for run, state in runs:
            where = f", in session {run.session_id}" if run.session_id else ""
            reply = f", reply {state}" if state else ""
            yield f"  {format_time(run.due_at, schedule)}: {shorten(format_result(run), 80)}{where}{reply}"

    times = [run_as_json(run) | {"reply": state or None} for run, state in runs]
    data = task_as_json(schedule, runs[0][0] if runs else None) | {"times": times}
    render(Result(data, text), as_json)


@_task_command("run")
def run_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Run task NAME once, now.

    A running gateway runs it. Without one, this command runs it; an answer to a chat is sent when a gateway runs.

    \b
    Examples:
      everthread cron run say-good-morning
      everthread cron run say-good-morning --json
    """
    from everthread.cli.commands.gateway.lock import read_lock

    by_gateway = read_lock(cli.settings.home).running
    if not by_gateway and sys.stderr.isatty():
        click.echo("No gateway is running; running the task here ...", err=True)

    async def work(runtime: CliRuntime) -> tuple[Schedule, Occurrence | None, OccurrenceResult | None]:
        schedule = await _find(runtime, owner, name)
        if by_gateway:
            await runtime.scheduling.run_now(schedule)
            return schedule, None, None
        await runtime.ready()
        run = await runtime.scheduling.run_now(schedule)
        ended = await runtime.scheduler(lambda reply: None).run_occurrence(run)
        return schedule, ended, await runtime.scheduling.outcome(ended) if ended is not None else None

    schedule, ended, outcome = cli.open_home(work)
    answer = outcome.text if outcome is not None else None
    data = {
        "name": schedule.name,
        "by": "gateway" if by_gateway else "here",
        "time": run_as_json(ended) if ended is not None else None,
        "text": answer,
    }

    def text() -> Iterator[str]:
        if ended is None:
            started = "The gateway runs it now." if by_gateway else "It runs after the run in progress."
            yield f"{started} everthread cron show {schedule.name} shows the result."
            return
        if answer:
            yield answer
        if not ended.problem:
            click.echo(f"Done here, because no gateway is running; {format_delivery(schedule, ended)}", err=True)

    render(Result(data, text), as_json)
    if ended is not None and ended.problem:
        raise EverthreadError(ended.problem)


@_task_command("pause")
def pause_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Pause task NAME.

    \b
    Examples:
      everthread cron pause say-good-morning
      everthread cron pause say-good-morning --json
    """

    async def pause(runtime: CliRuntime) -> Schedule:
        return await runtime.scheduling.pause(await _find(runtime, owner, name))

    schedule = cli.write(pause)
    text = f"{schedule.name} is paused. Resume it with everthread cron resume {schedule.name}."
    render(Result(task_as_json(schedule), text), as_json)


@_task_command("resume")
def resume_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Resume task NAME. Runs that were due while it was paused are skipped.

    \b
    Examples:
      everthread cron resume say-good-morning
      everthread cron resume say-good-morning --json
    """

    async def resume(runtime: CliRuntime) -> Schedule:
        return await runtime.scheduling.resume(await _find(runtime, owner, name))

    schedule = cli.write(resume)
    render(Result(task_as_json(schedule), f"{schedule.name}: {format_next(schedule)}"), as_json)


@_task_command("remove")
def remove_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Remove task NAME. Its sessions are kept.

    \b
    Examples:
      everthread cron remove say-good-morning
      everthread cron remove say-good-morning --json
    """

    async def remove(runtime: CliRuntime) -> Schedule:
        schedule = await _find(runtime, owner, name)
        await runtime.scheduling.remove(schedule)
        return schedule

    schedule = cli.write(remove)
    data = {"name": schedule.name, "owner": schedule.owner, "removed": True}
    render(Result(data, f"{schedule.name} is removed. Its sessions are kept."), as_json)


async def _find(runtime: CliRuntime, owner: str, name: str) -> Schedule:
    return await runtime.scheduling.find(owner or runtime.settings.owner, name)


def _reply_state(uow: UnitOfWork, run: Occurrence) -> str:
    """Return the state of the reply to a chat; empty if there is none."""
    row = uow.inbox.get(run.inbox_id or 0)
    reply = uow.outbox.reply(row.turn_id) if row is not None and row.turn_id else None
    return reply.state.value if reply is not None else ""
