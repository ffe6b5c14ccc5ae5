"""The scope of sessions in groups, and the chats that the migration gives to stored turns.

Whole conversations are tested in tests/e2e/gateway/test_recall_in_groups.py.
"""

from __future__ import annotations

import pytest

from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.recall_scope import RecallScope
from everthread.store.recall_scope import RecallScopes, scope_at
from everthread.store.unit_of_work import UnitOfWork

CHAT = "agent:main:telegram:group:-100"


@pytest.mark.parametrize(
    ("key", "owner", "scope"),
    [
        ("agent:main:telegram:dm:42", "me", RecallScope("me")),
        (f"{CHAT}::42", "me", RecallScope("me", CHAT, True)),
        (CHAT, "group:telegram:-100", RecallScope("group:telegram:-100", None, True)),
        # A person's session in a place that a group shares, such as one bound by an older configuration.
        (CHAT, "me", RecallScope("me", CHAT, True)),
    ],
)
def test_a_person_in_a_group_is_limited_to_its_chat(key: str, owner: str, scope: RecallScope) -> None:
    assert scope_at(SessionKey.parse(key), owner) == scope


def test_only_the_exact_setting_lifts_the_limit(uow: UnitOfWork) -> None:
    ref = SessionRef("s", 0, SessionKey.parse(f"{CHAT}::42"), 1, "me")
    assert RecallScopes("owner").of(uow, ref) == RecallScope("me")
    assert RecallScopes("anything").of(uow, ref).chat == CHAT
