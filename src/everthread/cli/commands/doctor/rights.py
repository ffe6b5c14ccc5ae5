"""The check of `[access]`: names that do not exist, and what people who wrote before may not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from everthread.cli.commands.doctor.check import Case, Finding, bad, well
from everthread.domain.model import SessionKind
from everthread.domain.pairing import is_group
from everthread.domain.rights import GUEST_TOOLS, MCP_SOURCE, SKILL_READERS, Grants, RightsPolicy, rights_of
from everthread.domain.text_format import pluralize

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.store.unit_of_work import UnitOfWork

_SESSIONS_MAX = 1000
_DELEGATE, _SKILL_WRITE = "delegate", "skill_write"
_PEOPLE_MAX = 20
"""Limit for the people and groups that are listed."""


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
    return _finding(lost, policy.people)


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
) -> dict[str, Grants]:
    """Return what each person and group who wrote before may not use."""
    chosen = uow.sessions.chosen_models()
    lost: dict[str, Grants] = {}
    for owner in owners:
        accounts = tuple(guest.account for guest in uow.access.guests(owner))
        rights = rights_of(policy, owner, accounts=accounts)
        lacks = Grants(
            tuple(name for name in tools if name not in rights.tools),
            tuple(name for name in skills if not rights.may_use_skill(name)),
            tuple(model for whose, model in chosen if whose == owner and not rights.may_use_model(model)),
        )
        if lacks != Grants():
            lost[owner] = lacks
    return lost


def _finding(lost: Mapping[str, Grants], granted: Mapping[str, Grants]) -> Finding:
    """List one table for each person, never one of a role: it would grant one person's tools to all guests.

    `granted` are the tables that the settings have already.
    """
    if not lost:
        return well("all granted names exist")
    groups = sum(map(is_group, lost))
    counts = [pluralize(n, what) for n, what in ((len(lost) - groups, "guest"), (groups, "group")) if n]
    more = f" The first {_PEOPLE_MAX} are listed." if len(lost) > _PEOPLE_MAX else ""
    says = (
        f"{' and '.join(counts)} who wrote before may not use everything.{more} To grant it, copy from these lines "
        "into config.toml what each of them needs, in place of a table of the same name"
    )
    lines: list[str] = []
    for owner, lacks in [*lost.items()][:_PEOPLE_MAX]:
        lines += _table(owner, lacks, granted.get(owner, Grants()))
    return well(says, tuple(lines))


def _table(owner: str, lacks: Grants, has: Grants) -> list[str]:
    kinds = {
        "tools": (*has.tools, *lacks.tools),
        "skills": (*has.skills, *lacks.skills),
        "models": (*has.models, *lacks.models),
    }
    arrays = [f"{kind} = [{', '.join(map(_toml_text, names))}]" for kind, names in kinds.items() if names]
    return [f"[access.people.{_toml_text(owner)}]", *arrays]


def _toml_text(text: str) -> str:
    """Write a TOML string without characters that a terminal would not show as they are."""
    plain = (char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}" for char in text)
    return f'"{"".join(plain)}"'
