"""Checks of external services: the model, platforms, MCP servers, memory providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.cli.commands.doctor.check import Case, Finding, bad, skipped, well
from everthread.domain.errors import EverthreadError

if TYPE_CHECKING:
    from everthread.memory import MemoryManager


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
    problems = await case.unopened.try_mcp(offline=case.offline)
    if problems:
        what = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        return bad(what, "fix its table in config.toml or mcp.json, or set disabled = true there")
    return well("all servers start")


async def providers(case: Case) -> Finding:
    from everthread.ports.memory import Capability

    runtime = case.open_runtime
    declared = [p.name for p in runtime.providers if Capability.HEALTH in p.capabilities]
    health = await runtime.memory.health() if declared else {}
    unhealthy = {name: health.get(name, "no answer") for name in declared if health.get(name) != "ok"}
    if unhealthy:
        what = "; ".join(f"{name}: {status}" for name, status in unhealthy.items())
        return bad(what, "check the service of the provider; deliveries wait for it")
    return well(", ".join(runtime.memory.names) + _silent_in_groups(case, runtime.memory))


def _silent_in_groups(case: Case, memory: MemoryManager) -> str:
    """Name the providers that are not asked in group chats, if platforms are configured."""
    assert case.settings is not None
    if case.settings.memory.recall_in_groups == "owner" or not case.settings.platforms:
        return ""
    silent = [name for name in memory.names if not memory.filters_by_conversation(name)]
    if not silent:
        return "; in group chats, only what was said there is recalled"
    return (
        f"; in group chats, only what was said there is recalled, and {', '.join(silent)} not asked: "
        "see memory.recall_in_groups"
    )
