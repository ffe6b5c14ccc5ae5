"""`everthread gateway`: serving people who write from elsewhere, as a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

if TYPE_CHECKING:
    from everthread.cli.commands.gateway.lock import Held
    from everthread.gateway.server import Gateway


@click.group()
def gateway() -> None:
    """Serve people who write from elsewhere: on messaging platforms, and over HTTP.

    There is one gateway for each home. It serves what `[platforms]` and `[gateway]` in config.toml say.

    \b
    Examples:
      everthread gateway run
      everthread gateway install
      everthread gateway start
      everthread gateway status
    """


@gateway.command()
@json_option
@home_option
@pass_invocation
def run(invocation: CliContext, as_json: bool) -> None:
    """Serve in this terminal, until Ctrl-C or SIGTERM.

    Answers that are being written may end within `gateway.drain_s` seconds; the rest is gone on with at the next start.
    A second signal ends it at once. With --json, one line says when it is up.

    \b
    Examples:
      everthread gateway run
      everthread --home /srv/agent gateway run
    """
    from everthread.cli.commands.gateway.lock import Holding
    from everthread.cli.commands.gateway.run import Ending, serve

    def tell(held: Held, gateway: Gateway, problems: tuple[str, ...]) -> None:
        for problem in problems:
            click.echo(f"everthread: {show.one_line(problem)}", err=True)
        if as_json:
            import json

            up = {"pid": held.pid, "port": held.port, "platforms": list(gateway.platforms)}
            click.echo(json.dumps(up))
        else:
            served = [*gateway.platforms, *([f"HTTP on port {held.port}"] if held.port is not None else [])]
            click.echo(f"Serving {', '.join(served) or 'nothing: no platform is configured'}. Ctrl-C stops it.")

    settings = invocation.settings
    holding = Holding(settings.home)
    with Ending(settings.gateway.drain_s) as ending:
        try:
            invocation.serve(lambda runtime: serve(runtime, holding, ending, tell))
        finally:
            holding.leave()
        ending.leave()


@gateway.command()
@click.option("--print", "only_print", is_flag=True, help="Show the unit, and write nothing.")
@click.option("--system", "system", is_flag=True, help="Show how to install it for the whole machine.")
@json_option
@home_option
@pass_invocation
def install(invocation: CliContext, only_print: bool, system: bool, as_json: bool) -> None:
    """Have systemd start the gateway with the machine, and again if it fails.

    This writes a unit for your user. Keys have to be in .env: systemd does not know what your shell has set.

    \b
    Examples:
      everthread gateway install
      everthread gateway install --print
      everthread gateway install --system
    """
    from everthread.cli.commands.gateway import systemd

    settings = invocation.settings
    if system:
        import getpass

        text, file = systemd.unit(settings, getpass.getuser()), f"{systemd.SYSTEM_FOLDER}/{systemd.NAME}"
        how = [
            f"everthread gateway install --system --json | jq -r .unit | sudo tee {file}",
            "sudo systemctl daemon-reload",
            f"sudo systemctl enable --now {systemd.NAME}",
        ]
        if as_json:
            show.print_json({"file": file, "written": False, "unit": text, "then": how})
        else:
            click.echo("\n".join([f"# {file}; to install it:", *(f"#   {line}" for line in how), "", text]), nl=False)
        return
    if only_print:
        file, text = systemd.path(), systemd.unit(settings)
    else:
        file = systemd.install(settings)
        text = file.read_text()
    then = ["everthread gateway start", "loginctl enable-linger"]
    if as_json:
        show.print_json({"file": str(file), "written": not only_print, "unit": text, "then": then})
    elif only_print:
        click.echo(text, nl=False)
    else:
        click.echo(
            f"{file} is written. everthread gateway start begins it now; loginctl enable-linger has it run while"
        )
        click.echo("you are not logged in.")


@gateway.command()
@json_option
@home_option
@pass_invocation
def start(invocation: CliContext, as_json: bool) -> None:
    """Start the gateway in the background: systemd's if it is installed, else a process of its own.

    \b
    Examples:
      everthread gateway start
      everthread gateway start --json
    """
    _show_started(_start(invocation), as_json)


@gateway.command()
@json_option
@home_option
@pass_invocation
def stop(invocation: CliContext, as_json: bool) -> None:
    """Stop the gateway of this home, wherever it was started from.

    Answers that are being written may end within `gateway.drain_s` seconds.

    \b
    Examples:
      everthread gateway stop
      everthread --home /srv/agent gateway stop
    """
    from everthread.cli.commands.gateway import control as steering

    by = steering.stop(invocation.settings)
    if as_json:
        show.print_json({"running": False, "pid": by.pid if by is not None else None})
    else:
        click.echo(f"The gateway has stopped{f' (process {by.pid})' if by is not None else ''}.")


@gateway.command()
@json_option
@home_option
@pass_invocation
def restart(invocation: CliContext, as_json: bool) -> None:
    """Stop the gateway if it runs, and start it again, say after a change of config.toml.

    \b
    Examples:
      everthread gateway restart
    """
    from everthread.cli.commands.gateway import control as steering
    from everthread.domain.errors import NotFound

    try:
        steering.stop(invocation.settings)
    except NotFound:
        # None runs: then there is nothing to stop, and one is started all the same.
        pass
    _show_started(_start(invocation), as_json)


@gateway.command()
@json_option
@home_option
@pass_invocation
def status(invocation: CliContext, as_json: bool) -> None:
    """Show whether the gateway runs, and how it gets on. The exit code is 1 if it does not run.

    \b
    Examples:
      everthread gateway status
      everthread gateway status --json | jq '.platforms[] | select(.up == false)'
    """
    from everthread.cli.commands.gateway import status as state

    found = state.of(invocation)
    if as_json:
        show.print_json(state.as_json(found))
    else:
        for line in state.in_words(found):
            click.echo(show.one_line(line))
    if not found.seen.running:
        raise click.exceptions.Exit(REFUSED)


def _start(invocation: CliContext) -> Held:
    from everthread.cli.commands.gateway import control as steering
    from everthread.cli.exit_codes import complain

    try:
        return steering.start(invocation.settings, invocation.home)
    except steering.NotStarted as error:
        complain(str(error))
        raise click.exceptions.Exit(error.code) from error


def _show_started(by: Held, as_json: bool) -> None:
    if as_json:
        up: dict[str, Any] = {"running": True, "pid": by.pid, "since": show.iso_time(by.started_at), "port": by.port}
        show.print_json(up)
    else:
        where = f", HTTP on port {by.port}" if by.port is not None else ""
        click.echo(f"The gateway is up (process {by.pid}{where}).")
