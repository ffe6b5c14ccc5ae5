"""Rights of the owner, of admins, guests and groups."""

from __future__ import annotations

import pytest

from everthread.domain.model import SessionKey
from everthread.domain.rights import (
    BUILT_IN,
    OWNER_RIGHTS,
    AccessRole,
    Grants,
    Rights,
    RightsPolicy,
    rights_of,
    speaker_account,
)

GROUP = "group:telegram:-100"


def policy(**more: object) -> RightsPolicy:
    return RightsPolicy("me", **more)  # pyright: ignore[reportArgumentType]


def may(rights: Rights, name: str, source: str = BUILT_IN, *, remembers: bool = False) -> bool:
    return rights.may_use_tool(name, source, remembers=remembers)


@pytest.mark.parametrize("owner", ["telegram:42", "anna", GROUP])
def test_everybody_else_has_only_the_tools_for_their_own_memory(owner: str) -> None:
    rights = rights_of(policy(), owner)
    assert all(may(rights, name, remembers=True) for name in ("memory", "recall", "session_search", "schedule"))
    assert not any(may(rights, name) for name in ("delegate", "skill_list", "skill_view", "skill_write"))
    assert not may(rights, "mcp__files__read", "mcp:files")
    assert not may(rights, "weather", "")
    assert not rights.may_use_skill("trips")
    assert not rights.may_use_model("stub/large")
    assert not rights.is_owner


def test_the_owner_may_use_everything() -> None:
    rights = rights_of(policy(), "me")
    assert rights is OWNER_RIGHTS
    assert may(rights, "weather", "")
    assert rights.may_use_skill("trips")
    assert rights.may_use_model("stub/large")


def test_a_plugins_tool_cannot_pass_for_a_built_in_one() -> None:
    assert not may(rights_of(policy(), "anna"), "schedule", source="")


def test_the_name_of_a_source_is_no_grant_of_all_built_in_tools() -> None:
    rights = rights_of(policy(roles={AccessRole.GUEST: Grants((BUILT_IN,))}), "anna")
    assert not may(rights, "delegate")


def test_a_server_is_granted_with_all_its_tools_and_a_tool_by_its_name() -> None:
    rights = rights_of(policy(roles={AccessRole.GUEST: Grants(("mcp:files", "weather"))}), "anna")
    assert may(rights, "mcp__files__read", "mcp:files")
    assert may(rights, "weather", "")
    assert not may(rights, "mcp__mail__send", "mcp:mail")


def test_grants_of_role_platform_and_person_add_up() -> None:
    rules = policy(
        roles={AccessRole.GUEST: Grants(("a",)), AccessRole.GROUP: Grants(("g",))},
        platforms={"telegram": Grants(("b",))},
        people={"telegram:42": Grants(("c",)), "anna": Grants(models=("stub/large",))},
        links={"anna": ("telegram:42",)},
    )
    assert rights_of(rules, "anna").tools == {"a", "b", "c"}
    assert rights_of(rules, "anna").may_use_model("stub/large")
    assert rights_of(rules, "telegram:7").tools == {"a", "b"}
    assert rights_of(rules, "matrix:7").tools == {"a"}
    assert rights_of(rules, GROUP).tools == {"g", "b"}
    assert rights_of(rules, "paired", accounts=("telegram:9",)).tools == {"a", "b"}


def test_an_admin_is_a_guest_with_what_admins_are_granted() -> None:
    rules = policy(
        roles={AccessRole.GUEST: Grants(("a",)), AccessRole.ADMIN: Grants(("b",))},
        links={"anna": ("matrix:1", "telegram:42")},
        admins=frozenset({"telegram:42"}),
    )
    assert rights_of(rules, "anna") == Rights(AccessRole.ADMIN, frozenset({"a", "b"}))
    assert not rights_of(rules, "anna").is_owner
    assert rights_of(rules, "telegram:43").role is AccessRole.GUEST


def test_a_group_named_like_an_admin_is_no_admin() -> None:
    rules = policy(admins=frozenset({GROUP}), roles={AccessRole.ADMIN: Grants(("a",))})
    assert rights_of(rules, GROUP) == Rights(AccessRole.GROUP)


@pytest.mark.parametrize("owner", ["me", "anna"])
def test_text_of_a_webhook_is_not_written_into_lasting_memory(owner: str) -> None:
    rights = rights_of(policy(), owner, platform="hooks")
    assert not may(rights, "memory", remembers=True)
    assert may(rights, "recall")


def test_a_speaker_limits_a_group_even_if_the_grants_are_spelled_differently() -> None:
    group = Rights(AccessRole.GROUP, frozenset({"mcp:files", "weather"}), frozenset({"trips"}))
    some = group.limited_to([OWNER_RIGHTS, Rights(tools=frozenset({"mcp__files__read"}))])
    assert may(some, "mcp__files__read", "mcp:files")
    assert not may(some, "mcp__files__write", "mcp:files")
    assert not may(some, "weather", "")
    assert not some.may_use_skill("trips")
    assert may(some, "memory", remembers=True)
    assert group.limited_to([OWNER_RIGHTS]) is group


def test_rights_that_differ_have_different_digests() -> None:
    different = [
        OWNER_RIGHTS,
        Rights(AccessRole.OWNER, writes_memory=False),
        Rights(),
        Rights(AccessRole.GROUP),
        Rights(tools=frozenset({"a"})),
        Rights(skills=frozenset({"a"})),
        Rights(models=frozenset({"a"})),
        Rights(also=(Rights(tools=frozenset({"a"})),)),
    ]
    assert len({rights.digest for rights in different}) == len(different)
    assert OWNER_RIGHTS.digest == ""
    assert Rights(tools=frozenset({"a", "b"})).digest == Rights(tools=frozenset({"b", "a"})).digest


def test_the_account_of_a_speaker_is_known_in_delegated_work() -> None:
    assert speaker_account(SessionKey.parse("agent:main:telegram:group:-100"), "42") == "telegram:42"
    assert speaker_account(SessionKey.parse("agent:main:subagent:dm:t-1"), "telegram:42") == "telegram:42"
    assert speaker_account(SessionKey.parse("agent:main:cron:dm:t-1"), "") == ""
