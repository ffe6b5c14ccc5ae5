"""`everthread memory bridge`: memory plugins of Hermes Agent's, which there are and what each can do here."""

from __future__ import annotations

from typing import Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

_PREFIX = "hermes:"
_WORDS_CHARS_MAX = 100


@click.group()
def bridge() -> None:
    """See which memory plugins of Hermes Agent's can be used here, and try them.

    They run as they are, in an environment that has hermes-agent: one that `everthread setup memory hermes:PLUGIN`
    makes, or your own, named as memory.hermes.python. A plugin is used by naming it among the memory providers.

    \b
    Examples:
      everthread memory bridge list
      everthread memory bridge test hermes:holographic
      everthread setup memory builtin hermes:holographic
    """


@bridge.command("list")
@json_option
@home_option
@pass_invocation
def list_plugins(invocation: CliContext, as_json: bool) -> None:
    """List the memory plugins that are there: those that come with Hermes Agent, and those in its home.

    SET UP says whether the plugin has what it needs; if not, its settings belong into the config.yaml and .env of
    Hermes Agent's home. Each plugin is loaded for this, and nothing is told to it.

    \b
    Examples:
      everthread memory bridge list
      everthread memory bridge list --json | jq -r '.plugins[] | select(.available) | .name'
    """
    found = invocation.run(invocation.unopened(invocation.settings).hermes_plugins())
    used = invocation.settings.memory.providers
    for plugin in found["plugins"]:
        plugin["name"] = f"{_PREFIX}{plugin['name']}"
        plugin["used"] = plugin["name"] in used
    if as_json:
        show.print_json(found)
        return
    if found["plugins"]:
        click.echo(show.table(("PLUGIN", "FROM", "SET UP", "USED", "WHAT IT IS"), [_row(p) for p in found["plugins"]]))
    click.echo(f"{show.counted(len(found['plugins']), 'plugin')} under {found['python']}, {_version(found['hermes'])}.")


@bridge.command()
@click.argument("plugin", metavar="hermes:PLUGIN")
@json_option
@home_option
@pass_invocation
def test(invocation: CliContext, plugin: str, as_json: bool) -> None:
    """Start a plugin, tell it a turn, a note and the end of a session, and ask for them again.

    Its files are made in a folder that is removed afterwards; a plugin that has a server tells the server, in a session
    called everthread-test-.... The exit code is 1 if something went wrong.

    \b
    Examples:
      everthread memory bridge test hermes:holographic
      everthread memory bridge test openviking --json
    """
    name = plugin if plugin.startswith(_PREFIX) else f"{_PREFIX}{plugin}"
    click.echo(f"Trying {show.one_line(name)} ...", err=True)
    steps = invocation.run(invocation.unopened(invocation.settings).try_hermes(name))
    good = all(step["ok"] for step in steps)
    if as_json:
        show.print_json({"plugin": name, "ok": good, "steps": steps})
    else:
        for step in steps:
            said = f": {show.shortened(step['said'], _WORDS_CHARS_MAX)}" if step["said"] and step["ok"] else ""
            said = f": {show.one_line(step['said'])}" if not step["ok"] else said
            click.echo(f"{'ok    ' if step['ok'] else 'FAILED'}  {step['step']}{said}")
        if good and name not in invocation.settings.memory.providers:
            used = " ".join((*invocation.settings.memory.providers, name))
            click.echo(f"To use it: everthread setup memory {used}")
    if not good:
        raise click.exceptions.Exit(REFUSED)


def _row(plugin: dict[str, Any]) -> tuple[str, ...]:
    words = plugin["why"] or plugin["description"]
    return (
        plugin["name"],
        "Hermes Agent" if plugin["kind"] == "bundled" else "its home",
        "yes" if plugin["available"] else "no",
        "yes" if plugin["used"] else "no",
        show.shortened(words, _WORDS_CHARS_MAX),
    )


def _version(version: str) -> str:
    return f"hermes-agent {version}" if version else "without hermes-agent"
