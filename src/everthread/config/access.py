"""The rules of `[access]` as a policy, and the names in them that do not exist."""

from __future__ import annotations

from collections.abc import Mapping

from everthread.config.schema import AccessGrants, AccessSettings, Settings
from everthread.domain.pairing import format_account
from everthread.domain.rights import MCP_SOURCE, AccessRole, Grants, RightsPolicy


def rights_policy(settings: Settings) -> RightsPolicy:
    access = settings.access
    admins = (format_account(name, user) for name, account in settings.platforms.items() for user in account.admins)
    roles = {
        AccessRole.GUEST: _grants(access.guests),
        AccessRole.ADMIN: _grants(access.admins),
        AccessRole.GROUP: _grants(access.groups),
    }
    return RightsPolicy(
        settings.owner,
        roles,
        {name: _grants(grants) for name, grants in access.platforms.items()},
        {name: _grants(grants) for name, grants in access.people.items()},
        settings.gateway.links,
        frozenset(admins),
    )


def grants_of(access: AccessSettings) -> dict[tuple[str, ...], AccessGrants]:
    """Return every table of grants by its keys below `access`."""
    roles = {("guests",): access.guests, ("admins",): access.admins, ("groups",): access.groups}
    platforms = {("platforms", name): grants for name, grants in access.platforms.items()}
    return {**roles, **platforms, **{("people", name): grants for name, grants in access.people.items()}}


def unknown_grants(settings: Settings) -> list[str]:
    """Return one line for each platform and MCP server that `[access]` names and the settings do not have."""
    found = [
        f"access.platforms.{name}: there is no platform of this name"
        for name in settings.access.platforms
        if name not in settings.platforms
    ]
    for keys, grants in grants_of(settings.access).items():
        for tool in grants.tools:
            server = tool.removeprefix(MCP_SOURCE)
            if server != tool and server not in settings.mcp_servers:
                found.append(f"{_path(keys)}.tools: there is no MCP server {server!r}")
    return found


def unknown_names(settings: Settings, tools: Mapping[str, object], skills: Mapping[str, object]) -> list[str]:
    """Return one line for each granted tool and skill that does not exist."""
    found: list[str] = []
    for keys, grants in grants_of(settings.access).items():
        plain = (name for name in grants.tools if not name.startswith(MCP_SOURCE))
        found += [f"{_path(keys)}.tools: there is no tool {name!r}" for name in plain if name not in tools]
        found += [f"{_path(keys)}.skills: there is no skill {name!r}" for name in grants.skills if name not in skills]
    return found


def _path(keys: tuple[str, ...]) -> str:
    from everthread.config.tables import dotted  # noqa: PLC0415 - only problems need it

    return dotted(("access", *keys))


def _grants(given: AccessGrants) -> Grants:
    return Grants(given.tools, given.skills, given.models)
