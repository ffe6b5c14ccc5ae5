"""`everthread doctor`: run all checks and print the problems with their fixes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render, strip_control_chars
from everthread.domain.errors import BadConfig, EverthreadError
from everthread.domain.text_format import one_line, pluralize

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from everthread.cli.commands.doctor.check import Case, Check, Finding
    from everthread.cli.context import CliRuntime

_MARKS = {True: "ok", False: "FAILED", None: "-"}


def all_checks() -> tuple[Check, ...]:
    """Return all checks in order."""
    from everthread.cli.commands.doctor import gateway, machine, rights, services, store, trust
    from everthread.cli.commands.doctor.check import Check

    return (
        Check("python", machine.python, bound_s=1.0),
        Check("configuration", machine.configuration),
        Check("home", machine.home),
        Check("env", machine.env, bound_s=3.0),
        Check("plugins", trust.plugins, "settings", bound_s=2.0),
        Check("skills", trust.project_skills, "settings", bound_s=3.0),
        Check("disk", machine.disk, bound_s=3.0),
        Check("sqlite", machine.engine, "unopened", bound_s=20.0),
        Check("store", machine.store, "unopened"),
        Check("search", machine.search_index, "unopened", bound_s=1.0),
        Check("clock", machine.clock, "unopened"),
        Check("parked", store.parked, "runtime"),
        Check("lanes", store.lanes, "runtime"),
        Check("incidents", store.incidents, "store"),
        Check("updates", store.failed_updates, "store"),
        Check("hooks", store.hooks, "store"),
        Check("turns", store.slots, "store"),
        Check("notes", store.notes, "runtime"),
        Check("gateway", gateway.gateway, "runtime", bound_s=5.0),
        Check("http", gateway.http, "runtime"),
        Check("access", rights.access, "runtime"),
        Check("platforms", services.platforms, "settings", bound_s=15.0),
        Check("memory", services.providers, "runtime"),
        Check("mcp", services.mcp, "settings", bound_s=40.0),
        Check("model", services.model, "settings", bound_s=95.0),
    )


@click.command()
@click.option("--offline", is_flag=True, help="Skip checks that need the network.")
@common_options
def doctor(cli: CliContext, offline: bool, as_json: bool) -> None:
    """Check the installation and suggest fixes.

    One short request is sent to the model, which may cost money. The exit code is 1 if a check fails.

    \b
    Examples:
      everthread doctor
      everthread doctor --offline
      everthread doctor --json | jq '.checks[] | select(.well == false)'
    """
    found: list[tuple[str, Finding]] = []

    async def run() -> None:
        async for name, finding in run_checks(cli, offline):
            found.append((name, finding))
            if not as_json:
                _print(name, finding)

    cli.run(run())
    failed = [name for name, finding in found if finding.well is False]
    checks = [
        {"check": name, "well": f.well, "says": f.says, "fix": f.fix or None, "lines": list(f.lines)}
        for name, f in found
    ]
    text = f"{pluralize(len(failed), 'check')} failed." if failed else "All checks passed."
    render(Result({"well": not failed, "checks": checks}, text), as_json, ok=not failed)


async def run_checks(cli: CliContext, offline: bool) -> AsyncIterator[tuple[str, Finding]]:
    """Run the checks one after another. A failing check does not stop the next."""
    from contextlib import AsyncExitStack

    from everthread.cli.commands.doctor.check import Case, run_check
    from everthread.config.schema import Settings

    case = Case(cli.home_paths, offline)
    try:
        case.settings = cli.settings
    except BadConfig as error:
        case.config_problem = str(error)
    try:
        # The store can be checked even if config.toml is invalid.
        case.unopened = cli.unopened_runtime(case.settings or Settings(case.home_paths.home))
    except BadConfig as error:
        case.config_problem = case.config_problem or str(error)
    async with AsyncExitStack() as opened:
        for check in all_checks():
            if check.name == "store":
                case.runtime = await _open(case, opened)
            yield check.name, await run_check(check, case)


async def _open(case: Case, opened: AsyncExitStack) -> CliRuntime | None:
    """Open the store. On failure, the store check reports the error and the others are skipped."""
    if case.unopened is None or case.examined is None or case.examined.damage:
        return None
    try:
        return await opened.enter_async_context(case.unopened) if case.db_path.exists() else None
    except (EverthreadError, OSError):
        return None


def _print(name: str, finding: Finding) -> None:
    click.echo(f"{_MARKS[finding.well]:<6}  {name:<13}  {one_line(finding.says)}")
    for line in finding.lines:
        click.echo(strip_control_chars(line))
    if finding.well is False:
        click.echo(f"{'':<6}  {'':<13}  fix: {one_line(finding.fix)}")
