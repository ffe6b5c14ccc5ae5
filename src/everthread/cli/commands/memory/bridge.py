"""`everthread memory bridge`: list and test memory plugins of Hermes Agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render, table
from everthread.domain.text_format import one_line, pluralize, shorten

_PREFIX = "hermes:"
_TEXT_CHARS_MAX = 100


@click.group()
def bridge() -> None:
    """List and test memory plugins of Hermes Agent.

    Plugins run unchanged in a Python environment with hermes-agent: one made by `everthread setup memory
    hermes:PLUGIN`, or your own (memory.hermes.python). To use a plugin, add it to the memory providers.

    \b
    Examples:
      everthread memory bridge list
      everthread memory bridge test hermes:holographic
      everthread setup memory builtin hermes:holographic
    """


@bridge.command("list")
@common_options
def list_plugins(cli: CliContext, as_json: bool) -> None:
    """List memory plugins: those bundled with Hermes Agent, and those in its home.

    SET UP tells if the plugin is configured; its settings belong in config.yaml and .env of the Hermes home. Each
    plugin is loaded, but receives no data.

    \b
    Examples:
      everthread memory bridge list
      everthread memory bridge list --json | jq -r '.plugins[] | select(.available) | .name'
    """
    found = cli.run(cli.unopened_runtime(cli.settings).hermes_plugins())
    used = cli.settings.memory.providers
    for plugin in found["plugins"]:
        plugin["name"] = f"{_PREFIX}{plugin['name']}"
        plugin["used"] = plugin["name"] in used

    def text() -> Iterator[str]:
        if found["plugins"]:
            yield table(("PLUGIN", "FROM", "SET UP", "USED", "DESCRIPTION"), [_row(p) for p in found["plugins"]])
        version = f"hermes-agent {found['hermes']}" if found["hermes"] else "without hermes-agent"
        yield f"{pluralize(len(found['plugins']), 'plugin')} in {found['python']}, {version}."

    render(Result(found, text), as_json)


@bridge.command()
@click.argument("plugin", metavar="hermes:PLUGIN")
@common_options
def test(cli: CliContext, plugin: str, as_json: bool) -> None:
    """Test a plugin: start it, send it a turn, a note and a session end, and recall them.

    Its files go into a temporary folder. A plugin with a server sends the data to that server, in a session named
    everthread-test-.... The exit code is 1 if a step fails.

    \b
    Examples:
      everthread memory bridge test hermes:holographic
      everthread memory bridge test openviking --json
    """
    name = plugin if plugin.startswith(_PREFIX) else f"{_PREFIX}{plugin}"
    click.echo(f"Testing {one_line(name)} ...", err=True)
    steps = cli.run(cli.unopened_runtime(cli.settings).try_hermes(name))
    passed = all(step["ok"] for step in steps)

    def text() -> Iterator[str]:
        for step in steps:
            detail = f": {shorten(step['said'], _TEXT_CHARS_MAX)}" if step["said"] and step["ok"] else ""
            detail = f": {one_line(step['said'])}" if not step["ok"] else detail
            yield f"{'ok    ' if step['ok'] else 'FAILED'}  {step['step']}{detail}"
        if passed and name not in cli.settings.memory.providers:
            yield f"To use it: everthread setup memory {' '.join((*cli.settings.memory.providers, name))}"

    render(Result({"plugin": name, "ok": passed, "steps": steps}, text), as_json, ok=passed)


def _row(plugin: dict[str, Any]) -> tuple[str, ...]:
    description = plugin["why"] or plugin["description"]
    return (
        plugin["name"],
        "Hermes Agent" if plugin["kind"] == "bundled" else "Hermes home",
        "yes" if plugin["available"] else "no",
        "yes" if plugin["used"] else "no",
        shorten(description, _TEXT_CHARS_MAX),
    )
