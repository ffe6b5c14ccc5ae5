"""The scope of sessions in groups, and the chats that the migration gives to stored turns.

Whole conversations are tested in tests/e2e/gateway/test_recall_in_groups.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import ME, CoreFixture

from everthread.domain.boundary import Resume
from everthread.domain.model import Cause, Session, SessionKey, SessionKind, SessionRef, subagent_key
from everthread.domain.recall_scope import RecallScope
from everthread.store.recall_scope import RecallScopes, chat_of_turn, scope_at
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


async def test_finished_delegated_work_has_the_scope_of_the_turn_that_delegated_it(tmp_path: Path) -> None:
    """Its session was begun in private and continued in a group, or the other way round."""
    private, group = SessionKey.parse("agent:main:telegram:dm:42"), SessionKey.parse(f"{CHAT}::42")
    for first, second, scope in (
        (private, group, RecallScope(ME, CHAT, True)),
        (group, private, RecallScope(ME)),
    ):
        async with CoreFixture(tmp_path / first.chat_type.value) as core:
            parent_id = (await core.turn(first, "hello")).ref.session_id
            await core.lifecycle.cross(second, Resume(parent_id), owner=ME)
            await core.turn(second, "delegate")
            view = await core.store.read(lambda uow, s=parent_id: uow.turns.own_turns(s, after=1, up_to=2, limit=1))
            assert await _delegated_scope(core, parent_id, view[0].turn_id) == (scope, scope.chat)


async def test_delegated_work_of_an_unknown_turn_recalls_nothing_and_is_not_recalled_in_groups(tmp_path: Path) -> None:
    private = SessionKey.parse("agent:main:telegram:dm:42")
    async with CoreFixture(tmp_path) as core:
        parent_id = (await core.turn(private, "the zebra safe opens with 4711")).ref.session_id
        await core.store.index()
        scope, chat = await _delegated_scope(core, parent_id, "unknown")
        hits = await core.store.read(lambda uow: uow.search.search(ME, "zebra", limit=5, chat=scope.chat))
        assert (hits, scope.in_group, chat) == ((), True, None)


async def _delegated_scope(core: CoreFixture, parent_id: str, turn_id: str) -> tuple[RecallScope, str | None]:
    """Return the scope of a delegated session, and the chat of its turns."""
    key = subagent_key("main", turn_id, "1")
    child = Session(
        "child", ME, key, SessionKind.SUBAGENT, Cause.NEW, opened_at=1.0, active_at=1.0, parent_id=parent_id
    )
    await core.store.write(lambda uow: uow.sessions.add(child))
    ref = child.ref_at(key, 0)
    return await core.store.read(lambda uow: (RecallScopes().of(uow, ref), chat_of_turn(uow, ref)))
