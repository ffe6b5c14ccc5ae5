"""`everthread cron`: tasks that the gateway runs on a schedule."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, owner_option, pass_cli
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.text_format import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.config.settings import Settings
    from everthread.domain.schedule import Occurrence, Schedule, Target
    from everthread.lifecycle.schedules import OccurrenceResult
    from everthread.store.unit_of_work import UnitOfWork

RUNS_SHOWN = 10
SPEND_MAX = 1_000_000


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


def _check_number(context: click.Context, option: click.Parameter, dollars: float | None) -> float | None:
    """Reject `nan`: it passes every range check and would disable the limit."""
    if dollars is not None and math.isnan(dollars):
        raise click.BadParameter("not a number")
    return dollars


@cron.command()
@click.argument("when")
@click.argument("prompt")
@click.option("--name", metavar="NAME", default="", help="Name of the task. Default: the first words of PROMPT.")
@click.option("--zone", metavar="ZONE", default="", help="Time zone, such as Europe/Berlin.")
@click.option(
    "--to",
    metavar="WHERE",
    default="none",
    help="PLATFORM:CHAT, file:PATH, append:PATH or https://... Default: only store the answer.",
)
@click.option(
    "--secret-env", metavar="NAME", default="", help="Environment variable with the secret that signs webhook requests."
)
@click.option("--model", metavar="MODEL", default="", help="Use this model: PROVIDER/MODEL.")
@click.option("--tools", metavar="A,B", default=None, help='Allow only these tools; "" allows none.')
@click.option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="Handling of runs that were missed because no gateway was running.",
)
@click.option("--continue", "continues", is_flag=True, help="Continue the same session each time.")
@click.option(
    "--spend",
    metavar="DOLLARS",
    type=click.FloatRange(min=0, max=SPEND_MAX),
    callback=_check_number,
    default=None,
    help="Spend at most this much per run.",
)
@owner_option
@json_option
@home_option
@pass_cli
def add(
    cli: CliContext,
    when: str,
    prompt: str,
    name: str,
    zone: str,
    to: str,
    secret_env: str,
    model: str,
    tools: str | None,
    missed: str,
    continues: bool,
    spend: float | None,
    owner: str,
    as_json: bool,
) -> None:
    """Run PROMPT on the schedule WHEN.

    WHEN is a cron expression (minute hour day month weekday, or @daily and similar), "every 2h", "in 20m",
    "at 08:00" or "at 2026-11-23 08:00". Times are local times of the zone. When the clock changes, a skipped time runs
    at the change and a repeated time runs once. Intervals are elapsed time.

    \b
    Examples:
      everthread cron add "0 8 * * 1-5" "Say good morning" --zone Europe/Berlin --to telegram:42
      everthread cron add "every 2h" "Anything new on the list?" --name list --missed skip
      everthread cron add "at 2026-11-23 08:00" "Remind me of the train" --to telegram:42
      everthread cron add @daily "Sum up the day" --to file:day.md --tools "" --json
      everthread cron add @hourly "How is the shop?" --to https://shop.example/told --secret-env SHOP_SECRET
    """
    from everthread.cli.commands.gateway.lock import read_lock
    from everthread.domain.recurrence import Missed
    from everthread.lifecycle.schedules import NewSchedule

    settings = cli.settings
    task = NewSchedule(
        _owner(owner) or settings.owner,
        when,
        zone or settings.zone,
        prompt,
        name,
        _target(settings, to, secret_env),
        _model(settings, model),
        tuple(filter(None, (tool.strip() for tool in tools.split(",")))) if tools is not None else None,
        Missed(missed),
        continues,
        spend,
    )

    async def add_task(runtime: CliRuntime) -> Schedule:
        return await runtime.scheduling.add(task)

    schedule = cli.open_home(add_task)
    render(Result(_as_json(schedule, None), f"{schedule.name}: {_next(schedule)}"), as_json)
    if not as_json and not read_lock(settings.home).running:
        click.echo("No gateway is running; tasks run only while one is. Start it: everthread gateway start", err=True)


@cron.command("list")
@json_option
@home_option
@pass_cli
def list_tasks(cli: CliContext, as_json: bool) -> None:
    """List tasks with their next run and the result of the last one.

    \b
    Examples:
      everthread cron list
      everthread cron list --json | jq -r '.[] | select(.last.state == "failed") | .name'
    """

    async def list_all(runtime: CliRuntime) -> tuple[tuple[Schedule, Occurrence | None], ...]:
        return await runtime.scheduling.all()

    found = cli.read(list_all, default=())
    owner = cli.settings.owner

    def text() -> str:
        rows = [
            (
                schedule.name if schedule.owner == owner else f"{schedule.name} ({schedule.owner})",
                schedule.recurrence,
                _next(schedule).removeprefix("next: "),
                str(schedule.target),
                shortened(_outcome(last)),
            )
            for schedule, last in found
        ]
        empty = "No tasks yet. Add one with everthread cron add."
        return table(("NAME", "WHEN", "NEXT", "TO", "LAST"), rows, empty=empty)

    render(Result([_as_json(schedule, last) for schedule, last in found], text), as_json)


@cron.command("show")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_cli
def show_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Show task NAME and its last runs.

    \b
    Examples:
      everthread cron show say-good-morning
      everthread cron show say-good-morning --json | jq '.times[0]'
    """

    from everthread.domain.errors import NotFound

    async def read(runtime: CliRuntime) -> tuple[Schedule, tuple[Occurrence, ...], tuple[str, ...]]:
        schedule = await _find(runtime, cli, owner, name)
        times = await runtime.store.read(lambda uow: uow.schedules.occurrences(schedule.id, RUNS_SHOWN))
        replies = await runtime.store.read(lambda uow: tuple(_reply_state(uow, time) for time in times))
        return schedule, times, replies

    found = cli.read(read, default=None)
    if found is None:
        raise NotFound(f"no task {name[:80]!r}; add one with everthread cron add")
    schedule, times, replies = found

    def data() -> dict[str, Any]:
        rows = [{**_time_as_json(time), "reply": state or None} for time, state in zip(times, replies, strict=True)]
        return {**_as_json(schedule, times[0] if times else None), "times": rows}

    def text() -> Iterator[str]:
        yield f"{schedule.name}: {schedule.recurrence} ({schedule.zone}), to {schedule.target}"
        yield f"  prompt: {shortened(schedule.prompt, 80)}"
        yield f"  {_next(schedule)}; missed runs: {schedule.missed.value}"
        for time, state in zip(times, replies, strict=True):
            where = f", in session {time.session_id}" if time.session_id else ""
            reply = f", reply {state}" if state else ""
            yield f"  {_at(time.due_at, schedule)}: {shortened(_outcome(time), 80)}{where}{reply}"

    render(Result(data, text), as_json)


@cron.command("run")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_cli
def run_task(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Run task NAME once, now.

    A running gateway runs it. Without one, this command runs it; an answer to a chat is sent when a gateway runs.

    \b
    Examples:
      everthread cron run say-good-morning
      everthread cron run say-good-morning --json
    """
    from everthread.cli.commands.gateway.lock import read_lock
    from everthread.cli.exit_codes import REFUSED, print_error

    by_gateway = read_lock(cli.settings.home).running
    if not by_gateway and sys.stderr.isatty():
        click.echo("No gateway is running; running the task here ...", err=True)

    async def work(runtime: CliRuntime) -> tuple[Schedule, Occurrence | None, OccurrenceResult | None]:
        schedule = await _find(runtime, cli, owner, name)
        if by_gateway:
            await runtime.scheduling.run_now(schedule)
            return schedule, None, None
        await runtime.ready()
        time = await runtime.scheduling.run_now(schedule)
        ended = await runtime.scheduler(lambda reply: None).run_occurrence(time)
        return schedule, ended, await runtime.scheduling.outcome(ended) if ended is not None else None

    schedule, ended, outcome = cli.open_home(work)
    answer = outcome.text if outcome is not None else None
    data = {
        "name": schedule.name,
        "by": "gateway" if by_gateway else "here",
        "time": _time_as_json(ended) if ended is not None else None,
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
            click.echo(f"Done here, because no gateway is running; {_delivery(schedule, ended)}", err=True)

    render(Result(data, text), as_json)
    if ended is not None and ended.problem:
        print_error(ended.problem)
        raise click.exceptions.Exit(REFUSED)


def _add_verb(what: str, message: str, text: str, example: str) -> None:
    """Add a verb that changes one task: pause, resume or remove."""

    def change(cli: CliContext, name: str, owner: str, as_json: bool) -> None:
        async def work(runtime: CliRuntime) -> Schedule:
            schedule = await _find(runtime, cli, owner, name)
            if what == "remove":
                await runtime.scheduling.remove(schedule)
                return schedule
            return await (runtime.scheduling.pause if what == "pause" else runtime.scheduling.resume)(schedule)

        schedule, _ = cli.write(work)
        removed: dict[str, Any] = {"name": schedule.name, "owner": schedule.owner, "removed": True}
        data = removed if what == "remove" else _as_json(schedule, None)
        render(Result(data, message.format(name=schedule.name, next=_next(schedule))), as_json)

    change.__doc__ = f"{text}\n\n\b\nExamples:\n  {example}\n  {example} --json"
    decorated = pass_cli(change)
    decorated.__doc__ = change.__doc__
    cron.command(what)(click.argument("name")(owner_option(json_option(home_option(decorated)))))


_add_verb(
    "pause",
    "{name} is paused. Resume it with everthread cron resume {name}.",
    "Pause task NAME.",
    "everthread cron pause say-good-morning",
)
_add_verb(
    "resume",
    "{name}: {next}",
    "Resume task NAME. Runs that were due while it was paused are skipped.",
    "everthread cron resume say-good-morning",
)
_add_verb(
    "remove",
    "{name} is removed. Its sessions are kept.",
    "Remove task NAME. Its sessions are kept.",
    "everthread cron remove say-good-morning",
)


async def _find(runtime: CliRuntime, cli: CliContext, owner: str, name: str) -> Schedule:
    return await runtime.scheduling.find(owner or cli.settings.owner, name)


def _reply_state(uow: UnitOfWork, time: Occurrence) -> str:
    """Return the state of the reply to a chat; empty if there is none."""
    row = uow.inbox.get(time.inbox_id or 0)
    reply = uow.outbox.reply(row.turn_id) if row is not None and row.turn_id else None
    return reply.state.value if reply is not None else ""


def _target(settings: Settings, to: str, secret_env: str) -> Target:
    from everthread.domain.schedule import chat_at
    from everthread.gateway.schedule_output import parse_target

    platforms = [name for name, account in settings.platforms.items() if account.enabled]
    return parse_target(to, secret_env, settings, lambda text: str(chat_at(text, settings.profile, platforms)))


def _owner(owner: str) -> str:
    from everthread.domain.errors import BadInput
    from everthread.domain.pairing import owner_problem

    if owner and (problem := owner_problem(owner)):
        raise BadInput(f"--owner: {problem}")
    return owner


def _model(settings: Settings, model: str) -> str:
    from everthread.config.parse import check_setting
    from everthread.domain.errors import BadInput

    if problem := check_setting("model", model, settings.providers):
        raise BadInput(f"--model: {problem}")
    return model


def _next(schedule: Schedule) -> str:
    from everthread.domain.schedule import ScheduleState

    if schedule.next_at is not None:
        return f"next: {_at(schedule.next_at, schedule)}"
    return "paused" if schedule.state is ScheduleState.PAUSED else "over"


def _at(instant: float, schedule: Schedule) -> str:
    from everthread.domain.recurrence import in_zone

    return in_zone(instant, schedule.zone)


def _outcome(time: Occurrence | None) -> str:
    if time is None:
        return "-"
    return f"{time.state.value}: {time.problem}" if time.problem else time.state.value


def _delivery(schedule: Schedule, time: Occurrence) -> str:
    from everthread.domain.schedule import OccurrenceState, TargetKind

    match schedule.target.kind:
        case TargetKind.NONE:
            return f"stored in session {time.session_id}"
        case TargetKind.CHAT:
            return f"the answer is sent to {schedule.target} when a gateway runs"
        case _:
            done = time.state is OccurrenceState.DONE
            return f"{'delivered' if done else 'not yet delivered'} to {schedule.target}"


def _time_as_json(time: Occurrence) -> dict[str, Any]:
    return {
        "due": iso_time(time.due_at),
        "state": time.state.value,
        "ended": iso_time(time.ended_at),
        "session": time.session_id,
        "problem": time.problem or None,
    }


def _as_json(schedule: Schedule, last: Occurrence | None) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "owner": schedule.owner,
        "when": schedule.recurrence,
        "zone": schedule.zone,
        "prompt": schedule.prompt,
        "to": str(schedule.target),
        "model": schedule.model or None,
        "tools": list(schedule.tools) if schedule.tools is not None else None,
        "missed": schedule.missed.value,
        "continue": schedule.continues,
        "spend": schedule.spend,
        "state": schedule.state.value,
        "next": iso_time(schedule.next_at),
        "last": _time_as_json(last) if last is not None else None,
    }
