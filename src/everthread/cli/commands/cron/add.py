"""`everthread cron add`: parse the options of a new task and store it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from everthread.cli.commands.cron.output import format_next, task_as_json
from everthread.cli.context import CliContext, common_options, owner_option
from everthread.cli.output import Result, render
from everthread.domain.errors import BadInput

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.domain.schedule import Target

SPEND_MAX = 1_000_000


def _check_number(context: click.Context, option: click.Parameter, dollars: float | None) -> float | None:
    """Reject `nan`: it passes every range check and would disable the limit."""
    if dollars is not None and math.isnan(dollars):
        raise click.BadParameter("not a number")
    return dollars


@click.command()
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
@common_options
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
      everthread cron add @hourly "How is the shop?" --to https://shop.example/report --secret-env SHOP_SECRET
    """
    from everthread.cli.commands.gateway.lock import read_lock
    from everthread.domain.recurrence import MissedPolicy
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
        MissedPolicy(missed),
        continues,
        spend,
    )
    schedule = cli.open_home(lambda runtime: runtime.scheduling.add(task))
    render(Result(task_as_json(schedule), f"{schedule.name}: {format_next(schedule)}"), as_json)
    if not as_json and not read_lock(settings.home).running:
        click.echo("No gateway is running; tasks run only while one is. Start it: everthread gateway start", err=True)


def _target(settings: Settings, to: str, secret_env: str) -> Target:
    from everthread.domain.schedule import parse_address
    from everthread.gateway.schedule_output import parse_target

    platforms = [name for name, account in settings.platforms.items() if account.enabled]
    return parse_target(to, secret_env, settings, lambda text: str(parse_address(text, settings.profile, platforms)))


def _owner(owner: str) -> str:
    from everthread.domain.pairing import owner_problem

    if owner and (problem := owner_problem(owner)):
        raise BadInput(f"--owner: {problem}")
    return owner


def _model(settings: Settings, model: str) -> str:
    from everthread.config.parse import check_setting

    if problem := check_setting("model", model, settings.providers):
        raise BadInput(f"--model: {problem}")
    return model
