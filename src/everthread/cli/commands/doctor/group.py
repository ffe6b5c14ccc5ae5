"""`everthread doctor`: whether everything is as it should be, and what to do if it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from everthread.cli.commands.doctor.check import Case, Check, Finding
    from everthread.cli.context import CliRuntime

_MARKS = {True: "ok", False: "FAILED", None: "-"}


def checks() -> tuple[Check, ...]:
    """All of them, in their order."""
    from everthread.cli.commands.doctor import gateway
    from everthread.cli.commands.doctor import machine as home
    from everthread.cli.commands.doctor import services as outside
    from everthread.cli.commands.doctor import store as inside
    from everthread.cli.commands.doctor.check import Check

    return (
        Check("python", home.python),
        Check("configuration", home.configuration),
        Check("home", home.home),
        Check("env", home.env),
        Check("disk", home.disk),
        Check("sqlite", home.engine, "unopened", bound_s=20.0),
        Check("store", home.store, "unopened"),
        Check("clock", home.clock, "unopened"),
        Check("parked", inside.parked, "runtime"),
        Check("lanes", inside.lanes, "runtime"),
        Check("incidents", inside.incidents, "store"),
        Check("hooks", inside.hooks, "store"),
        Check("turns", inside.slots, "store"),
        Check("notes", inside.notes, "runtime"),
        Check("gateway", gateway.gateway, "runtime", bound_s=5.0),
        Check("platforms", outside.platforms, "settings", bound_s=15.0),
        Check("memory", outside.providers, "runtime"),
        Check("mcp", outside.mcp, "settings", bound_s=40.0),
        Check("model", outside.model, "settings", bound_s=95.0),
    )


@click.command()
@click.option("--offline", is_flag=True, help="Ask nothing of the network: no model, no MCP server elsewhere.")
@json_option
@home_option
@pass_invocation
def doctor(invocation: CliContext, offline: bool, as_json: bool) -> None:
    """Check that everything is as it should be, and say what to do where it is not.

    The model is asked for one word, which costs what such a request costs. The exit code is 1 if a check has failed.

    \b
    Examples:
      everthread doctor
      everthread doctor --offline
      everthread doctor --json | jq '.checks[] | select(.well == false)'
    """
    found: list[tuple[str, Finding]] = []

    async def examine() -> None:
        async for name, finding in examined(invocation, offline):
            found.append((name, finding))
            if not as_json:
                _show(name, finding)

    invocation.run(examine())
    failed = [name for name, finding in found if finding.well is False]
    if as_json:
        listed = [{"check": name, "well": f.well, "says": f.says, "fix": f.fix or None} for name, f in found]
        show.print_json({"well": not failed, "checks": listed})
    else:
        click.echo(f"{show.counted(len(failed), 'check')} failed." if failed else "All is well.")
    if failed:
        raise click.exceptions.Exit(REFUSED)


async def examined(invocation: CliContext, offline: bool) -> AsyncIterator[tuple[str, Finding]]:
    """Run the checks one after another; nothing that one meets keeps the next from being run."""
    from contextlib import AsyncExitStack

    from everthread.cli.commands.doctor.check import Case
    from everthread.config.settings import Settings, places
    from everthread.domain.errors import BadConfig

    case = Case(places(invocation.home), offline)
    try:
        case.settings = invocation.settings
    except BadConfig as error:
        case.config_problem = str(error)
    try:
        # What is kept can be looked at whatever config.toml says.
        case.unopened = invocation.unopened(case.settings or Settings(case.places.home))
    except BadConfig as error:
        case.config_problem = case.config_problem or str(error)
    async with AsyncExitStack() as opened:
        for check in checks():
            if check.name == "store":
                case.runtime = await _opened(case, opened)
            yield check.name, await _outcome(check, case)


async def _opened(case: Case, opened: AsyncExitStack) -> CliRuntime | None:
    """The store's check says that it can't be opened; others have nothing to look at then."""
    from everthread.domain.errors import EverthreadError

    if case.unopened is None or case.examined is None or case.examined.damage:
        return None
    try:
        return await opened.enter_async_context(case.unopened) if case.db_path.exists() else None
    except (EverthreadError, OSError):
        return None


async def _outcome(check: Check, case: Case) -> Finding:
    """A check that raises has failed, and so has one that takes too long."""
    import asyncio

    from everthread.cli.commands.doctor.check import bad, skipped

    lacking = {
        "unopened": case.unopened is None,
        "settings": case.settings is None,
        "runtime": case.settings is None and case.runtime is not None,
    }
    if lacking.get(check.needs):
        return skipped("can't be looked at without a configuration that can be read")
    if check.needs in ("store", "runtime") and case.runtime is None:
        return skipped("can't be looked at without a store")
    try:
        async with asyncio.timeout(check.bound_s):
            return await check.run(case)
    except TimeoutError:
        return bad(f"no answer within {check.bound_s:g} s", "try again; if it stays so, see to what is checked")
    except OSError as error:
        if error.filename is None:
            return bad(str(error), "everthread logs may say more")
        return bad(f"{error.filename}: {error.strerror}", "mend its permissions, or choose another home with --home")
    except Exception as error:  # noqa: BLE001 - an examination goes on whatever it meets
        return bad(str(error) or type(error).__name__, "everthread logs may say more")


def _show(name: str, finding: Finding) -> None:
    click.echo(f"{_MARKS[finding.well]:<6}  {name:<13}  {show.one_line(finding.says)}")
    if finding.well is False:
        click.echo(f"{'':<6}  {'':<13}  fix: {show.one_line(finding.fix)}")
