"""`everthread gateway`: run, install, start, stop and check the gateway."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.exit_codes import print_error
from everthread.cli.output import Result, iso_time, render
from everthread.domain.errors import NotFound
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from everthread.cli.commands.gateway.lock import LockHolder
    from everthread.gateway.server import Gateway


@click.group()
def gateway() -> None:
    """Run the gateway (HTTP, Telegram).

    There is one gateway per home. The tables [platforms] and [gateway] in config.toml configure it.

    \b
    Examples:
      everthread gateway run
      everthread gateway install
      everthread gateway start
      everthread gateway status
    """


@gateway.command()
@common_options
def run(cli: CliContext, as_json: bool) -> None:
    """Run the gateway in the foreground, until Ctrl-C or SIGTERM.

    On shutdown, running turns have `gateway.drain_s` seconds to finish; the rest continues at the next start. A second
    signal exits immediately. With --json, one line of JSON is printed when the gateway is up.

    \b
    Examples:
      everthread gateway run
      everthread --home /srv/agent gateway run
    """
    from everthread.cli.commands.gateway.lock import GatewayLock, describe_http
    from everthread.cli.commands.gateway.run import ShutdownSignals, serve

    def on_ready(holder: LockHolder, gateway: Gateway, problems: tuple[str, ...], hint: str) -> None:
        for problem in problems:
            click.echo(f"everthread: {one_line(problem)}", err=True)
        if as_json:
            import json

            http = {"port": holder.port, "socket": holder.socket}
            click.echo(json.dumps({"pid": holder.pid, **http, "platforms": list(gateway.platforms)}))
        else:
            served = [*gateway.platforms, *filter(None, [describe_http(holder)])]
            click.echo(f"Serving {', '.join(served) or 'nothing: no platform is configured'}. Stop with Ctrl-C.")
            if hint:
                click.echo(hint)

    settings = cli.settings
    lock = GatewayLock(settings.home)
    with ShutdownSignals(settings.gateway.drain_s) as signals:
        try:
            cli.serve(lambda runtime: serve(runtime, lock, signals, on_ready))
        finally:
            lock.release()
        signals.exit_if_requested()


@gateway.command()
@click.option("--print", "only_print", is_flag=True, help="Print the unit without writing it.")
@click.option("--system", "system", is_flag=True, help="Print how to install it as a system service.")
@common_options
def install(cli: CliContext, only_print: bool, system: bool, as_json: bool) -> None:
    """Install the gateway as a systemd service of your user. It starts at boot and restarts on failure.

    API keys must be in .env: systemd does not see the environment of your shell.

    \b
    Examples:
      everthread gateway install
      everthread gateway install --print
      everthread gateway install --system
    """
    from everthread.cli.commands.gateway import systemd

    settings = cli.settings
    if system:
        import getpass

        text, file = systemd.unit(settings, getpass.getuser()), f"{systemd.SYSTEM_FOLDER}/{systemd.NAME}"
        commands = [
            f"everthread gateway install --system --json | jq -r .unit | sudo tee {file}",
            "sudo systemctl daemon-reload",
            f"sudo systemctl enable --now {systemd.NAME}",
        ]
        lines = [f"# {file}; to install it:", *(f"#   {command}" for command in commands), "", text.rstrip("\n")]
        render(Result({"file": file, "written": False, "unit": text, "then": commands}, lines), as_json)
        return
    if only_print:
        file, text = systemd.path(), systemd.unit(settings)
    else:
        file = systemd.install(settings)
        text = file.read_text()
    then = ["everthread gateway start", "loginctl enable-linger"]
    written = (
        f"Wrote {file}. Start it now with everthread gateway start. To keep it running while you are logged out, run "
        "loginctl enable-linger."
    )
    data = {"file": str(file), "written": not only_print, "unit": text, "then": then}
    render(Result(data, text.rstrip("\n") if only_print else written), as_json)


@gateway.command()
@common_options
def start(cli: CliContext, as_json: bool) -> None:
    """Start the gateway in the background, by systemd if it is installed there.

    \b
    Examples:
      everthread gateway start
      everthread gateway start --json
    """
    _start(cli, as_json)


@gateway.command()
@common_options
def stop(cli: CliContext, as_json: bool) -> None:
    """Stop the gateway of this home.

    Running turns have `gateway.drain_s` seconds to finish.

    \b
    Examples:
      everthread gateway stop
      everthread --home /srv/agent gateway stop
    """
    from everthread.cli.commands.gateway import control

    by = control.stop(cli.settings)
    text = f"The gateway has stopped{f' (process {by.pid})' if by is not None else ''}."
    render(Result({"running": False, "pid": by.pid if by is not None else None}, text), as_json)


@gateway.command()
@common_options
def restart(cli: CliContext, as_json: bool) -> None:
    """Restart the gateway, for example after a change of config.toml.

    \b
    Examples:
      everthread gateway restart
    """
    from everthread.cli.commands.gateway import control

    # If none is running, just start one.
    with contextlib.suppress(NotFound):
        control.stop(cli.settings)
    _start(cli, as_json)


@gateway.command()
@common_options
def status(cli: CliContext, as_json: bool) -> None:
    """Show the status of the gateway. The exit code is 1 if it is not running.

    \b
    Examples:
      everthread gateway status
      everthread gateway status --json | jq '.platforms[] | select(.up == false)'
    """
    from everthread.cli.commands.gateway.status import read_status, status_as_json, status_lines

    found = read_status(cli)
    result = Result(lambda: status_as_json(found), lambda: map(one_line, status_lines(found)))
    render(result, as_json, ok=found.seen.running)


def _start(cli: CliContext, as_json: bool) -> None:
    from everthread.cli.commands.gateway import control
    from everthread.cli.commands.gateway.lock import describe_http
    from everthread.cli.commands.gateway.token_access import TokenAccess, read_token_access

    try:
        by = control.start(cli.settings, cli.home)
    except control.GatewayNotStarted as error:
        print_error(str(error))
        raise click.exceptions.Exit(error.code) from error
    http = describe_http(by)
    access = cli.read(read_token_access, default=TokenAccess()) if http else TokenAccess()
    for problem in access.problems:
        print_error(problem)
    data = {
        "running": True,
        "pid": by.pid,
        "since": iso_time(by.started_at),
        "port": by.port,
        "socket": by.socket,
    }
    up = f"The gateway is up (process {by.pid}{f', {http}' if http else ''})."
    render(Result(data, [up, *filter(None, [access.hint])]), as_json)
