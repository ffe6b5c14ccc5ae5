"""Checks of external services: the model, platforms, MCP servers, memory providers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everthread.cli.commands.doctor.check import Case, Finding, bad, skipped, well
from everthread.domain.errors import EverthreadError
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.domain.tool_definition import ToolDefinition
    from everthread.memory import MemoryManager
    from everthread.ports.tools import ServerReport
    from everthread.store.tool_pins import ToolPin

_CHANGED_MAX = 5
_CLAIMS_MAX = 10


async def model(case: Case) -> Finding:

    if case.offline:
        return skipped("--offline")
    assert case.unopened is not None
    try:
        return well(f"{await case.unopened.reach()} answered")
    except EverthreadError as error:
        return bad(str(error), "run everthread setup to choose a model and its key")


async def platforms(case: Case) -> Finding:

    assert case.unopened is not None
    assert case.settings is not None
    wanted = [name for name, account in case.settings.platforms.items() if account.enabled]
    if not wanted:
        return skipped("none configured")
    if case.offline:
        return skipped("--offline")
    reached: list[str] = []
    wrong: list[str] = []
    for name in wanted:
        try:
            known_as = await case.unopened.reach_platform(name)
            reached.append(name if known_as == name else f"{name} ({known_as})")
        except EverthreadError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        return bad("; ".join(wrong), "check its token and its table in config.toml, or set enabled = false there")
    return well(", ".join(reached))


async def mcp(case: Case) -> Finding:
    assert case.unopened is not None
    assert case.settings is not None
    if all(server.disabled for server in case.settings.mcp_servers.values()):
        return skipped("none configured")
    report = await case.unopened.try_mcp(offline=case.offline)
    if report.problems:
        what = "; ".join(f"{name}: {problem}" for name, problem in report.problems.items())
        return bad(what, "fix its table in config.toml or mcp.json, or set disabled = true there")
    if missing := _missing_tools(case.settings, report):
        return bad(
            f"read_only names tools that the server does not offer: {missing}", "correct it in config.toml or mcp.json"
        )
    pins = await case.runtime.store.read(lambda uow: uow.tool_pins.all()) if case.runtime is not None else ()
    if changed := _changed_tools(report, pins):
        first = shlex.join((changed[0][0].server, changed[0][0].tool))
        fix = (
            "read it with everthread mcp pins --changes; if it is right, approve the next call in a chat or a "
            "terminal, or run everthread mcp unpin "
            f"{first}; if not, set disabled = true for the server"
        )
        return bad("; ".join(f"{d.server}: {one_line(d.tool)} has changed: {how}" for d, how in changed), fix)
    claims = _unused_claims(case.settings, report)
    return well("all servers start" + (f"; {claims}" if claims else ""))


def _missing_tools(settings: Settings, report: ServerReport) -> str:
    """Name the tools in `read_only` that their server, which has started, does not offer."""
    offered = {(tool.definition.server, tool.definition.tool) for tool in report.tools if tool.definition is not None}
    named = ((name, tool) for name in {name for name, _ in offered} for tool in settings.mcp_servers[name].read_only)
    return ", ".join(f"{name}: {one_line(tool)}" for name, tool in sorted(named) if (name, tool) not in offered)


def _changed_tools(report: ServerReport, pins: Sequence[ToolPin]) -> list[tuple[ToolDefinition, str]]:
    """Return the first tools that differ from their pins, each with the change in words."""
    from everthread.agent.tools.tool_pins import change_since

    pinned = {(pin.server, pin.tool): pin for pin in pins}
    definitions = [tool.definition for tool in report.tools if tool.definition is not None]
    found = ((d, pinned.get((d.server, d.tool))) for d in definitions)
    changes = ((d, change_since(pin, d)) for d, pin in found if pin is not None)
    return [(d, how.summary) for d, how in changes if how is not None][:_CHANGED_MAX]


def _unused_claims(settings: Settings, report: ServerReport) -> str:
    """Describe the tools that call themselves read-only and need approval all the same."""
    claims = [
        f"{tool.definition.server}: {one_line(tool.definition.tool)}"
        for tool in report.tools
        if tool.definition is not None
        and tool.definition.text.annotations.get("readOnlyHint") is True
        and tool.dangerous
        and tool.name not in settings.tools.allow
    ]
    if not claims:
        return ""
    more = f" and {len(claims) - _CLAIMS_MAX} more" if len(claims) > _CLAIMS_MAX else ""
    names = ", ".join(claims[:_CLAIMS_MAX])
    return f"these tools call themselves read-only, and need approval unless you list them in read_only: {names}{more}"


async def providers(case: Case) -> Finding:
    from everthread.ports.memory import Capability

    runtime = case.open_runtime
    declared = [p.name for p in runtime.providers if Capability.HEALTH in p.capabilities]
    health = await runtime.memory.health() if declared else {}
    unhealthy = {name: health.get(name, "no answer") for name in declared if health.get(name) != "ok"}
    if unhealthy:
        what = "; ".join(f"{name}: {status}" for name, status in unhealthy.items())
        return bad(what, "check the service of the provider; deliveries wait for it")
    return well(", ".join(runtime.memory.names) + _not_asked_in_groups(case, runtime.memory))


def _not_asked_in_groups(case: Case, memory: MemoryManager) -> str:
    """Name the providers that are not asked in group chats, if platforms are configured."""
    assert case.settings is not None
    if case.settings.memory.recall_in_groups == "owner" or not case.settings.platforms:
        return ""
    silent = [name for name in memory.names if not memory.filters_by_conversation(name)]
    if not silent:
        return "; in group chats, only what was said there is recalled"
    return (
        f"; in group chats, only what was said there is recalled, without asking {', '.join(silent)}: "
        "see memory.recall_in_groups"
    )
