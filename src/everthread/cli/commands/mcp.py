"""`everthread mcp`: list and remove the pins of MCP tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.errors import NotFound
from everthread.domain.text_format import local_time, one_line, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everthread.store.tool_pins import ToolPin


@click.group()
def mcp() -> None:
    """List and remove the pins of MCP tools.

    A tool of an MCP server is pinned when you first approve a call, or at its first use if `read_only` or `tools.allow`
    lists it. A pin has the tool's name, description, parameters and annotations, and the server's program or URL. A
    tool that differs from its pin needs approval again. `everthread doctor` lists the tools that have changed.

    \b
    Examples:
      everthread mcp pins
      everthread mcp pins files --json
      everthread mcp unpin files read_file
    """


@mcp.command()
@click.argument("server", default="")
@click.option("--changes", is_flag=True, help="Start the servers, and show the tools that differ from their pins.")
@common_options
def pins(cli: CliContext, server: str, changes: bool, as_json: bool) -> None:
    """List pinned tools, of all servers or of SERVER. With --json, also what was approved.

    With --changes, all texts that a server changed since they were approved are shown in full, with invisible
    characters as codes. It starts the servers that are not disabled.

    \b
    Examples:
      everthread mcp pins
      everthread mcp pins files
      everthread mcp pins files --changes
      everthread mcp pins --json | jq -r '.[] | select(.tool == "read_file").description'
    """
    known = cli.read(lambda runtime: runtime.store.read(lambda uow: uow.tool_pins.all()), default=())
    found = [pin for pin in known if server in ("", pin.server)]
    if server and not found:
        raise NotFound(f"no pinned tool of a server {server[:100]!r}; everthread mcp pins lists all")
    if changes:
        _show_changes(cli, found, as_json)
        return
    rows = [(one_line(pin.server), one_line(pin.tool), local_time(pin.at)) for pin in found]
    text = table(
        ("SERVER", "TOOL", "PINNED"), rows, empty="No pinned tools. A tool is pinned at its first approved call."
    )
    render(Result([_as_json(pin) for pin in found], text), as_json)


@mcp.command()
@click.argument("server")
@click.argument("tool", default="")
@common_options
def unpin(cli: CliContext, server: str, tool: str, as_json: bool) -> None:
    """Remove the pin of TOOL, or all pins of SERVER.

    The next use pins the tool as it is then: after you approve the call, or without a question if the tool is in
    `read_only` or in `tools.allow`. Check a changed tool with `everthread doctor` first.

    \b
    Examples:
      everthread mcp unpin files read_file
      everthread mcp unpin files --json
    """

    async def remove(runtime: CliRuntime) -> tuple[ToolPin, ...]:
        return await runtime.store.write(lambda uow: uow.tool_pins.remove(server, tool))

    removed = cli.write_if_exists(remove, default=())
    if not removed:
        what = f"tool {tool[:100]!r}" if tool else "pinned tool"
        raise NotFound(f"no {what} of a server {server[:100]!r}; everthread mcp pins lists all")
    names = ", ".join(one_line(pin.tool) for pin in removed)
    text = f"Removed {pluralize(len(removed), 'pin')} of {one_line(server)}: {names}."
    render(Result({"server": server, "tools": [pin.tool for pin in removed]}, text), as_json)


def _show_changes(cli: CliContext, pins: Sequence[ToolPin], as_json: bool) -> None:
    import asyncio

    from everthread.agent.tools.tool_pins import change_since

    report = asyncio.run(cli.unopened_runtime(cli.settings).try_mcp())
    for name, problem in report.problems.items():
        click.echo(f"{one_line(name)}: {one_line(problem)}", err=True)
    offered = {(d.server, d.tool): d for tool in report.tools if (d := tool.definition) is not None}
    pairs = [(pin, offered[pin.server, pin.tool]) for pin in pins if (pin.server, pin.tool) in offered]
    changed = [(pin, change) for pin, new in pairs if (change := change_since(pin, new)) is not None]
    text = "\n\n".join(
        "\n".join(filter(None, (f"{one_line(pin.server)} {one_line(pin.tool)}: {change.summary}.", change.whole)))
        for pin, change in changed
    )
    data = [
        {"server": pin.server, "tool": pin.tool, "summary": change.summary, "change": change.whole}
        for pin, change in changed
    ]
    render(Result(data, text or "No tool differs from its pin."), as_json)


def _as_json(pin: ToolPin) -> dict[str, Any]:
    from everthread.domain.tool_definition import DefinitionText

    text = DefinitionText.decode(pin.definition)
    return {
        "server": pin.server,
        "tool": pin.tool,
        "at": iso_time(pin.at),
        "description": text.description,
        "parameters": text.parameters,
        "annotations": text.annotations,
    }
