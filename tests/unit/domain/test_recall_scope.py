"""The chat of a session key, and the owner of a shared conversation."""

from __future__ import annotations

import pytest

from everthread.domain.model import SessionKey
from everthread.domain.recall_scope import RecallScope, chat_of, group_owner


@pytest.mark.parametrize(
    ("key", "chat"),
    [
        ("agent:main:telegram:dm:42", None),
        ("agent:main:telegram:group:-100", "agent:main:telegram:group:-100"),
        ("agent:main:telegram:group:-100::42", "agent:main:telegram:group:-100"),
        ("agent:main:telegram:thread:-100:7:42", "agent:main:telegram:thread:-100:7"),
        ("agent:main:telegram:channel:-100", "agent:main:telegram:channel:-100"),
    ],
)
def test_the_chat_of_a_key_has_no_user(key: str, chat: str | None) -> None:
    assert chat_of(SessionKey.parse(key)) == chat


def test_the_id_of_a_chat_cannot_read_like_a_chat_and_its_thread() -> None:
    one = group_owner(SessionKey.parse("agent:main:telegram:thread:-100:7"))
    other = group_owner(SessionKey.parse("agent:main:telegram:group:-100%3A7"))
    assert one == "group:telegram:-100:7" != other


def test_scopes_of_different_memory_have_different_marks() -> None:
    scopes = (
        RecallScope("me"),
        RecallScope("me", "a", True),
        RecallScope("me", "b", True),
        RecallScope("g", None, True),
    )
    assert len({scope.mark for scope in scopes}) == len(scopes)
