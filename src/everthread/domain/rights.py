"""Rights: the tools, skills and models that a person or a group may use. Pure.

`rights_of` computes them from the rules of the settings; every question of the form "may X use Y" is asked here. The
owner may use everything. Everybody else may use what `GUEST_TOOLS` names and what the settings grant by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from everthread.domain.model import HOOKS_PLATFORM, SUBAGENT_PLATFORM, Inbound, SessionKey
from everthread.domain.pairing import format_account, is_group

BUILT_IN = "builtin"
"""The source of the tools that the program itself provides."""
MCP_SOURCE = "mcp:"
"""Start of the source of a tool of an MCP server; the name of the server follows."""
GUEST_TOOLS = frozenset({"memory", "recall", "session_search", "schedule"})
"""Built-in tools that act only on the memory and the chat of the session's owner."""
SKILL_READERS = frozenset({"skill_list", "skill_view"})
"""Built-in tools that show only granted skills."""


class AccessRole(StrEnum):
    OWNER = "owner"
    """The person this installation belongs to, with all linked accounts."""
    ADMIN = "admin"
    """A guest with the commands for admins."""
    GUEST = "guest"
    GROUP = "group"
    """A chat whose members share a conversation."""


class Grants(Struct, frozen=True):
    """Names that the settings grant."""

    tools: tuple[str, ...] = ()
    """Names of tools, or `mcp:SERVER` for all tools of an MCP server."""
    skills: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


class Rights(Struct, frozen=True):
    """Tools, skills and models that a session, or a speaker in it, may use. The defaults: a guest without grants."""

    role: AccessRole = AccessRole.GUEST
    tools: frozenset[str] = frozenset()
    """Granted names; the owner needs none."""
    skills: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    writes_memory: bool = True
    """False for messages of other programs: their text must not be written into lasting memory."""
    also: tuple[Rights, ...] = ()
    """Rights that must allow it too: those of the people who speak in a group."""

    @property
    def is_owner(self) -> bool:
        """Return True for the owner, whose files enter the prompt. `GUESTS.md` enters that of everyone else."""
        return self.role is AccessRole.OWNER

    def may_use_tool(self, name: str, source: str, *, remembers: bool) -> bool:
        """Return True if the tool may be called. `source` and `remembers` are those of the tool."""
        return self._grants_tool(name, source, remembers=remembers) and all(
            rights.may_use_tool(name, source, remembers=remembers) for rights in self.also
        )

    def may_use_skill(self, name: str) -> bool:
        granted = self.is_owner or name in self.skills
        return granted and all(rights.may_use_skill(name) for rights in self.also)

    def may_use_model(self, name: str) -> bool:
        """Return True if the model may be chosen. Everybody may use the configured one, without choosing it."""
        granted = self.is_owner or name in self.models
        return granted and all(rights.may_use_model(name) for rights in self.also)

    def granted_model(self, name: str) -> str:
        """Return the name if the model may be chosen; an empty text, which means the configured model, otherwise."""
        return name if name and self.may_use_model(name) else ""

    def limited_to(self, others: Iterable[Rights]) -> Rights:
        """Return these rights where all the others allow it too."""
        also = dict.fromkeys((*self.also, *(rights for rights in others if rights not in (self, OWNER_RIGHTS))))
        return replace(self, also=tuple(also)) if also else self

    def _grants_tool(self, name: str, source: str, *, remembers: bool) -> bool:
        if remembers and not self.writes_memory:
            return False
        if self.is_owner or name in self.tools or (source.startswith(MCP_SOURCE) and source in self.tools):
            return True
        if source != BUILT_IN:
            return False
        return name in GUEST_TOOLS or (bool(self.skills) and name in SKILL_READERS)

    @property
    def digest(self) -> str:
        """Identify the rights that a prompt was built for; empty for all rights of the owner."""
        if self == OWNER_RIGHTS:
            return ""
        parts = (sorted(self.tools), sorted(self.skills), sorted(self.models))
        others = [rights.digest for rights in self.also]
        return hashlib.sha256(repr((self.role.value, parts, self.writes_memory, others)).encode()).hexdigest()


OWNER_RIGHTS = Rights(AccessRole.OWNER)


class RightsPolicy(Struct, frozen=True):
    """The rules of the settings."""

    owner: str
    """The owner of this installation."""
    roles: Mapping[AccessRole, Grants] = field(default_factory=dict[AccessRole, Grants])
    platforms: Mapping[str, Grants] = field(default_factory=dict[str, Grants])
    """Grants to everybody who has an account on a platform, and to its groups."""
    people: Mapping[str, Grants] = field(default_factory=dict[str, Grants])
    """Grants to one person or group, by owner or by account."""
    links: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The accounts of each owner."""
    admins: frozenset[str] = frozenset()
    """Accounts of admins."""

    def linked_owner(self, account: str) -> str:
        """Return the owner that the settings link an account to; empty if there is none."""
        return next((owner for owner, accounts in self.links.items() if account in accounts), "")


def rights_of(policy: RightsPolicy, owner: str, *, accounts: Iterable[str] = (), platform: str = "") -> Rights:
    """Return the rights of a session's owner, a person or a group.

    `accounts` are those that the store knows besides the linked ones. `platform` is that of the session key: text from
    a webhook must not be written into lasting memory. Delegated and scheduled work has the rights of its owner.
    """
    rights = _rights_of_owner(policy, owner, accounts)
    return replace(rights, writes_memory=False) if platform == HOOKS_PLATFORM else rights


def _rights_of_owner(policy: RightsPolicy, owner: str, accounts: Iterable[str]) -> Rights:
    if owner == policy.owner:
        return OWNER_RIGHTS
    known = {owner, *policy.links.get(owner, ()), *accounts}
    if is_group(owner):
        role, roles, known = AccessRole.GROUP, (AccessRole.GROUP,), {owner}
    elif known & policy.admins:
        role, roles = AccessRole.ADMIN, (AccessRole.GUEST, AccessRole.ADMIN)
    else:
        role, roles = AccessRole.GUEST, (AccessRole.GUEST,)
    platforms = {_platform_of(account) for account in known}
    granted = [
        *(policy.roles[each] for each in roles if each in policy.roles),
        *(policy.platforms[name] for name in sorted(platforms) if name in policy.platforms),
        *(policy.people[name] for name in sorted(known) if name in policy.people),
    ]
    return Rights(
        role,
        frozenset(name for grants in granted for name in grants.tools),
        frozenset(name for grants in granted for name in grants.skills),
        frozenset(name for grants in granted for name in grants.models),
    )


def speaker_account(key: SessionKey, user: str) -> str:
    """Return the account that wrote a message, from its session key and user; empty if it is unknown.

    Delegated work has no platform of its own: its message names the account of the delegating speaker.
    """
    if not user or key.platform == SUBAGENT_PLATFORM:
        return user
    return format_account(key.platform, user)


def accounts_of(inbound: Inbound) -> frozenset[str]:
    """Return the accounts whose rights limit a message: its author's, and those that wrote what is asked again."""
    return frozenset((speaker_account(inbound.key, inbound.user), *inbound.original_accounts))


def _platform_of(account: str) -> str:
    parts = account.split(":")
    if is_group(account):
        return parts[1] if len(parts) > 1 else ""
    return parts[0] if len(parts) > 1 else ""
