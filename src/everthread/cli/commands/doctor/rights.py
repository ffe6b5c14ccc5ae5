"""The check of `[access]`: names that do not exist, and what people who wrote before may not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from everthread.cli.commands.doctor.check import Case, Finding, bad, well
from everthread.domain.model import SessionKind
from everthread.domain.rights import GUEST_TOOLS, MCP_SOURCE, SKILL_READERS, AccessRole, RightsPolicy, rights_of
from everthread.domain.text_format import pluralize

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.store.unit_of_work import UnitOfWork

_SESSIONS_MAX = 1000
_DELEGATE, _SKILL_WRITE = "delegate", "skill_write"
_TABLES = {AccessRole.GUEST: "guests", AccessRole.ADMIN: "guests", AccessRole.GROUP: "groups"}


async def access(case: Case) -> Finding:
    import asyncio

    from everthread.config.access import rights_policy, unknown_grants, unknown_names
    from everthread.config.schema import AccessSettings

    assert case.settings is not None
    settings, runtime, policy = case.settings, case.open_runtime, rights_policy(case.settings)
    owners = await runtime.store.read(lambda uow: _other_owners(uow, policy))
    if settings.access == AccessSettings() and not owners:
        return well("nobody else has written")
    skills = [skill.name for skill in (await asyncio.to_thread(runtime.skills.read_all)).skills]
    provided = await _provider_tools(case)
    known = [*GUEST_TOOLS, *SKILL_READERS, _DELEGATE, _SKILL_WRITE, *provided]
    granted = [tool for grants in _all_tools(settings) for tool in grants if _is_mcp_tool(settings, tool)]
    problems = [
        *unknown_grants(settings),
        *unknown_names(settings, dict.fromkeys([*known, *granted]), dict.fromkeys(skills)),
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return bad(f"{problems[0]}{more}", "correct the name in config.toml; until then, nothing is granted by it")
    tools = [_DELEGATE, *(f"{MCP_SOURCE}{name}" for name in sorted(settings.mcp_servers)), *provided]
    lost = await runtime.store.read(lambda uow: _missing_rights(uow, policy, owners, tools, skills))
    return well("; ".join(lost) if lost else "all granted names exist")


async def _provider_tools(case: Case) -> list[str]:
    schemas = await case.open_runtime.memory.tool_schemas()
    given = [schema.get("function", schema) for tools in schemas.values() for schema in tools]
    return sorted(str(schema.get("name", "")) for schema in given)


def _all_tools(settings: Settings) -> list[tuple[str, ...]]:
    from everthread.config.access import grants_of

    return [grants.tools for grants in grants_of(settings.access).values()]


def _is_mcp_tool(settings: Settings, tool: str) -> bool:
    """Return true for a tool of a configured server. The server is not asked if it has the tool."""
    import re

    names = (re.sub("[^A-Za-z0-9_-]", "_", name) for name in settings.mcp_servers)
    return any(tool.startswith(f"mcp__{name}__") for name in names)


def _other_owners(uow: UnitOfWork, policy: RightsPolicy) -> list[str]:
    recent = uow.sessions.recent(owner=None, limit=_SESSIONS_MAX, kind=SessionKind.CHAT.value)
    return sorted({session.owner for session in recent} - {policy.owner})


def _missing_rights(
    uow: UnitOfWork, policy: RightsPolicy, owners: Sequence[str], tools: Sequence[str], skills: Sequence[str]
) -> list[str]:
    """Return one line for each role: who wrote before, what they may not use, and the lines that grant it."""
    chosen = uow.sessions.chosen_models()
    people: dict[str, int] = {}
    missing: dict[str, dict[str, dict[str, None]]] = {}
    for owner in owners:
        accounts = tuple(guest.account for guest in uow.access.guests(owner))
        rights = rights_of(policy, owner, accounts=accounts)
        table = _TABLES[rights.role]
        lacks = {
            "tools": [name for name in tools if name not in rights.tools],
            "skills": [name for name in skills if not rights.may_use_skill(name)],
            "models": [model for whose, model in chosen if whose == owner and not rights.may_use_model(model)],
        }
        if any(lacks.values()):
            people[table] = people.get(table, 0) + 1
            for kind, names in lacks.items():
                missing.setdefault(table, {}).setdefault(kind, {}).update(dict.fromkeys(names))
    return [_line(table, people[table], lacks) for table, lacks in sorted(missing.items(), reverse=True)]


def _line(table: str, count: int, lacks: Mapping[str, Mapping[str, None]]) -> str:
    named = [(kind, names) for kind, names in lacks.items() if names]
    what = ", ".join(f"{kind} {', '.join(names)}" for kind, names in named)
    lines = " ".join(f"{kind} = {msgspec.json.encode([*names]).decode()}" for kind, names in named)
    who = pluralize(count, "group" if table == "groups" else "guest")
    return f"{who} who wrote before may not use: {what}. To grant it, add to config.toml: [access.{table}] {lines}"
