"""`everthread cron`: what is to be done at times, by itself."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.config.settings import Settings
    from everthread.domain.schedule import Occurrence, Schedule, Target
    from everthread.lifecycle.schedules import Outcome

SHOWN = 10
SPEND_MAX = 1_000_000


@click.group()
def cron() -> None:
    """Have the agent do things at times, by itself.

    A task is a prompt and a time. The gateway asks it of the agent when the time comes, in a conversation of its own,
    and hands the answer over: to a chat, a file or another program.

    \b
    Examples:
      everthread cron add "0 8 * * 1-5" "Say good morning" --zone Europe/Berlin --to telegram:42
      everthread cron add "every 2h" "Anything new on the list?" --to append:list.txt
      everthread cron list
      everthread cron run say-good-morning
    """


def _number(context: click.Context, option: click.Parameter, dollars: float | None) -> float | None:
    """`nan` is within every range, and would be no limit at all."""
    if dollars is not None and math.isnan(dollars):
        raise click.BadParameter("that is no number")
    return dollars


def owner_option(command: Any) -> Any:
    return click.option("--owner", metavar="O", default="", help="Whose; you, if it is not given.")(command)


@cron.command()
@click.argument("when")
@click.argument("prompt")
@click.option("--name", metavar="NAME", default="", help="What to call it; else its first words are its name.")
@click.option("--zone", metavar="ZONE", default="", help="Whose clock it goes by, such as Europe/Berlin.")
@click.option(
    "--to",
    metavar="WHERE",
    default="none",
    help="PLATFORM:CHAT, file:PATH, append:PATH, https://...; else the answer is only kept.",
)
@click.option(
    "--secret-env", metavar="NAME", default="", help="The variable with the secret that a webhook is signed with."
)
@click.option("--model", metavar="MODEL", default="", help="The model to use: PROVIDER/MODEL.")
@click.option("--tools", metavar="A,B", default=None, help='The only tools that it may use; "" is none.')
@click.option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="What to do about times at which no gateway ran.",
)
@click.option("--continue", "continues", is_flag=True, help="Go on with the same conversation each time.")
@click.option(
    "--spend",
    metavar="DOLLARS",
    type=click.FloatRange(min=0, max=SPEND_MAX),
    callback=_number,
    default=None,
    help="At most so much each time.",
)
@owner_option
@json_option
@home_option
@pass_invocation
def add(
    invocation: CliContext,
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
    """Have PROMPT asked at the times that WHEN says.

    WHEN is a cron expression (minute hour day month weekday, or @daily and the like), "every 2h", "in 20m",
    "at 08:00" or "at 2026-11-23 08:00". Times are those of the zone's clock: one that it jumps over is done at the
    jump, one that it shows twice is done once. Intervals are in time that passes.

    \b
    Examples:
      everthread cron add "0 8 * * 1-5" "Say good morning" --zone Europe/Berlin --to telegram:42
      everthread cron add "every 2h" "Anything new on the list?" --name list --missed skip
      everthread cron add "at 2026-11-23 08:00" "Remind me of the train" --to telegram:42
      everthread cron add @daily "Sum up the day" --to file:day.md --tools "" --json
      everthread cron add @hourly "How is the shop?" --to https://shop.example/told --secret-env SHOP_SECRET
    """
    from everthread.domain.recurrence import Missed
    from everthread.lifecycle.schedules import Wish

    settings = invocation.settings
    wish = Wish(
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

    async def keep(runtime: CliRuntime) -> Schedule:
        return await runtime.scheduling.add(wish)

    schedule = invocation.talk(keep)
    if as_json:
        show.print_json(_as_json(schedule, None))
    else:
        click.echo(f"{schedule.name}: {_next(schedule)}")
        _hint(invocation)


@cron.command("list")
@json_option
@home_option
@pass_invocation
def list_tasks(invocation: CliContext, as_json: bool) -> None:
    """List the tasks there are, when each comes next and how it went last.

    \b
    Examples:
      everthread cron list
      everthread cron list --json | jq -r '.[] | select(.last.state == "failed") | .name'
    """

    async def look(runtime: CliRuntime) -> tuple[tuple[Schedule, Occurrence | None], ...]:
        return await runtime.scheduling.all()

    found = invocation.look(look, nothing=())
    if as_json:
        show.print_json([_as_json(schedule, last) for schedule, last in found])
    elif not found:
        click.echo("No tasks yet; everthread cron add makes one.")
    else:
        me = invocation.settings.owner
        rows = [
            (
                schedule.name if schedule.owner == me else f"{schedule.name} ({schedule.owner})",
                schedule.recurrence,
                _next(schedule).removeprefix("next: "),
                str(schedule.target),
                show.shortened(_went(last)),
            )
            for schedule, last in found
        ]
        click.echo(show.table(("NAME", "WHEN", "NEXT", "TO", "LAST"), rows))


@cron.command("show")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_invocation
def show_task(invocation: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Show the task NAME and how it went lately.

    \b
    Examples:
      everthread cron show say-good-morning
      everthread cron show say-good-morning --json | jq '.times[0]'
    """

    from everthread.domain.errors import NotFound

    async def look(runtime: CliRuntime) -> tuple[Schedule, tuple[Occurrence, ...], tuple[str, ...]]:
        schedule = await _found(runtime, invocation, owner, name)
        times = await runtime.store.read(lambda uow: uow.schedules.times(schedule.id, SHOWN))
        sent = await runtime.store.read(lambda uow: tuple(_sent(uow, time) for time in times))
        return schedule, times, sent

    found = invocation.look(look, nothing=None)
    if found is None:
        raise NotFound(f"there is no task {name[:80]!r}; everthread cron add makes one")
    schedule, times, sent = found
    if as_json:
        rows = [{**_time_as_json(time), "reply": state or None} for time, state in zip(times, sent, strict=True)]
        show.print_json({**_as_json(schedule, times[0] if times else None), "times": rows})
        return
    click.echo(f"{schedule.name}: {schedule.recurrence} ({schedule.zone}), to {schedule.target}")
    click.echo(f"  asks: {show.shortened(schedule.prompt, 80)}")
    click.echo(f"  {_next(schedule)}; missed ones: {schedule.missed.value}")
    for time, state in zip(times, sent, strict=True):
        where = f", in session {time.session_id}" if time.session_id else ""
        reply = f", reply {state}" if state else ""
        click.echo(f"  {_at(time.due_at, schedule)}: {show.shortened(_went(time), 80)}{where}{reply}")


@cron.command("run")
@click.argument("name")
@owner_option
@json_option
@home_option
@pass_invocation
def run_task(invocation: CliContext, name: str, owner: str, as_json: bool) -> None:
    """Do the task NAME once, now.

    The gateway does it, if one runs. Else it is done here and now; what goes to a chat waits for a gateway.

    \b
    Examples:
      everthread cron run say-good-morning
      everthread cron run say-good-morning --json
    """
    from everthread.cli.commands.gateway import lock as holding
    from everthread.cli.exit_codes import REFUSED, complain

    there = holding.look(invocation.settings.home).running
    if not there and sys.stderr.isatty():
        click.echo("No gateway runs; it is done here ...", err=True)

    async def work(runtime: CliRuntime) -> tuple[Schedule, Occurrence | None, Outcome | None]:
        schedule = await _found(runtime, invocation, owner, name)
        if there:
            await runtime.scheduling.want_now(schedule)
            return schedule, None, None
        await runtime.ready()
        time = await runtime.scheduling.want_now(schedule)
        ended = await runtime.scheduler(lambda reply: None).see_to(time)
        return schedule, ended, await runtime.scheduling.outcome(ended) if ended is not None else None

    schedule, ended, came = invocation.talk(work)
    if as_json:
        text = came.text if came is not None else None
        time = _time_as_json(ended) if ended is not None else None
        show.print_json({"name": schedule.name, "by": "gateway" if there else "here", "time": time, "text": text})
    elif ended is None:
        after = f"; everthread cron show {schedule.name} tells how it went"
        click.echo(("The gateway does it now" if there else "It is done after the time that is being done") + after)
    else:
        if came is not None and came.text:
            click.echo(came.text)
        if not ended.problem:
            click.echo(f"Done here, as no gateway runs; {_whereto(schedule, ended)}", err=True)
    if ended is not None and ended.problem:
        complain(ended.problem)
        raise click.exceptions.Exit(REFUSED)


def _change(what: str, said: str, text: str, example: str) -> None:
    """The three verbs that do something to one task."""

    def change(invocation: CliContext, name: str, owner: str, as_json: bool) -> None:
        async def work(runtime: CliRuntime) -> Schedule:
            schedule = await _found(runtime, invocation, owner, name)
            if what == "remove":
                await runtime.scheduling.remove(schedule)
                return schedule
            return await (runtime.scheduling.pause if what == "pause" else runtime.scheduling.resume)(schedule)

        schedule, _ = invocation.act(work)
        if as_json:
            removed: dict[str, Any] = {"name": schedule.name, "owner": schedule.owner, "removed": True}
            show.print_json(removed if what == "remove" else _as_json(schedule, None))
        else:
            click.echo(said.format(name=schedule.name, next=_next(schedule)))

    change.__doc__ = f"{text}\n\n\b\nExamples:\n  {example}\n  {example} --json"
    decorated = pass_invocation(change)
    decorated.__doc__ = change.__doc__
    cron.command(what)(click.argument("name")(owner_option(json_option(home_option(decorated)))))


_change(
    "pause",
    "{name} is paused; everthread cron resume {name} goes on with it.",
    "Do the task NAME no more until it is resumed.",
    "everthread cron pause say-good-morning",
)
_change(
    "resume",
    "{name}: {next}",
    "Go on with the task NAME. What would have been done meanwhile is not made up for.",
    "everthread cron resume say-good-morning",
)
_change(
    "remove",
    "{name} is removed. What was said in its conversations is kept.",
    "Remove the task NAME.",
    "everthread cron remove say-good-morning",
)


async def _found(runtime: CliRuntime, invocation: CliContext, owner: str, name: str) -> Schedule:
    return await runtime.scheduling.find(owner or invocation.settings.owner, name)


def _sent(uow: Any, time: Occurrence) -> str:
    """What became of what was said of it in a chat; empty if nothing was."""
    row = uow.inbox.get(time.inbox_id or 0)
    reply = uow.outbox.reply(row.turn_id) if row is not None and row.turn_id else None
    return reply.state.value if reply is not None else ""


def _target(settings: Settings, to: str, secret_env: str) -> Target:
    from everthread.domain.schedule import chat_at
    from everthread.gateway.schedule_output import target_at

    platforms = [name for name, account in settings.platforms.items() if account.enabled]
    return target_at(to, secret_env, settings, lambda text: str(chat_at(text, settings.profile, platforms)))


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


def _hint(invocation: CliContext) -> None:
    from everthread.cli.commands.gateway import lock as holding

    if not holding.look(invocation.settings.home).running:
        click.echo("No gateway runs, and only that does what is due: everthread gateway start", err=True)


def _next(schedule: Schedule) -> str:
    from everthread.domain.schedule import ScheduleState

    if schedule.next_at is not None:
        return f"next: {_at(schedule.next_at, schedule)}"
    return "paused" if schedule.state is ScheduleState.PAUSED else "over"


def _at(instant: float, schedule: Schedule) -> str:
    from everthread.domain.recurrence import in_zone

    return in_zone(instant, schedule.zone)


def _went(time: Occurrence | None) -> str:
    if time is None:
        return "-"
    return f"{time.state.value}: {time.problem}" if time.problem else time.state.value


def _whereto(schedule: Schedule, time: Occurrence) -> str:
    from everthread.domain.schedule import OccurrenceState, TargetKind

    match schedule.target.kind:
        case TargetKind.NONE:
            return f"kept in session {time.session_id}"
        case TargetKind.CHAT:
            return f"it goes out to {schedule.target} once a gateway runs"
        case _:
            done = time.state is OccurrenceState.DONE
            return f"{'handed over' if done else 'not yet handed over'} to {schedule.target}"


def _time_as_json(time: Occurrence) -> dict[str, Any]:
    return {
        "due": show.iso_time(time.due_at),
        "state": time.state.value,
        "ended": show.iso_time(time.ended_at),
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
        "next": show.iso_time(schedule.next_at),
        "last": _time_as_json(last) if last is not None else None,
    }
