"""`everthread plugins`: list, approve and refuse plugins of installed packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render, table
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from everthread.trust.decisions import Trust
    from everthread.trust.installed_plugins import InstalledPlugin, PluginTrust


@click.group()
def plugins() -> None:
    """List and approve plugins of installed packages.

    A plugin runs with your rights. It is loaded only if it is approved here or in a chat, or named in config.toml under
    [plugins] allow. An approval here holds for the plugin as it is now: another version needs another approval.

    \b
    Examples:
      everthread plugins list
      everthread plugins allow turn_counter
      everthread plugins refuse turn_counter
    """


@plugins.command("list")
@common_options
def list_plugins(cli: CliContext, as_json: bool) -> None:
    """List plugins of installed packages, without loading them.

    \b
    Examples:
      everthread plugins list
      everthread plugins list --json | jq -r '.plugins[].name'
    """
    trust, found = _found(cli)
    rows = [(plugin, trust.state(plugin)) for plugin in found]
    headings = ("NAME", "STATE", "PACKAGE", "FILE")
    cells = [(plugin.name, state.value, plugin.package, plugin.file) for plugin, state in rows]
    text = table(headings, cells, empty="No installed package has a plugin.")
    render(Result({"plugins": [_as_json(plugin, state) for plugin, state in rows]}, text), as_json)


@plugins.command()
@click.argument("name")
@common_options
def allow(cli: CliContext, name: str, as_json: bool) -> None:
    """Approve plugin NAME as it is now. The next start loads it.

    \b
    Examples:
      everthread plugins allow turn_counter
      everthread plugins allow turn_counter --json
    """
    _decide(cli, name, True, "Approved", as_json)


@plugins.command()
@click.argument("name")
@common_options
def refuse(cli: CliContext, name: str, as_json: bool) -> None:
    """Refuse plugin NAME, also if it was approved. A name in config.toml has to be removed there.

    \b
    Examples:
      everthread plugins refuse turn_counter
      everthread plugins refuse turn_counter --json
    """
    if name in cli.settings.plugins.allow:
        from everthread.domain.errors import BadInput

        raise BadInput(f"{one_line(name)[:80]} is in plugins.allow of config.toml; remove it there")
    _decide(cli, name, False, "Refused", as_json)


def _decide(cli: CliContext, name: str, approved: bool, done: str, as_json: bool) -> None:
    from everthread.domain.errors import BadInput, NotFound
    from everthread.trust.installed_plugins import why_not_loaded

    trust, found = _found(cli)
    plugin = next((plugin for plugin in found if plugin.name == name), None)
    if plugin is None:
        raise NotFound(f"no installed package has a plugin {name[:80]!r}; everthread plugins list shows all")
    if approved and plugin.rivals:
        raise BadInput("; ".join(why_not_loaded(plugin, trust.state(plugin))))
    trust.decide(plugin, approved)
    text = f"{done} the plugin {one_line(plugin.name)} of {one_line(plugin.package)}."
    render(Result(_as_json(plugin, trust.state(plugin)), text), as_json)


def _found(cli: CliContext) -> tuple[PluginTrust, list[InstalledPlugin]]:
    from everthread.plugins import find_installed
    from everthread.trust.decisions import trust_file
    from everthread.trust.installed_plugins import PluginTrust

    settings = cli.settings
    return PluginTrust(settings.plugins.allow, trust_file(settings)), [plugin for plugin, _ in find_installed()]


def _as_json(plugin: InstalledPlugin, state: Trust) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "state": state.name.lower(),
        "package": plugin.package,
        "target": plugin.target,
        "file": plugin.file or None,
        "rivals": list(plugin.rivals),
    }
