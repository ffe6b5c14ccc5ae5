"""Cached states of sessions, and sessions that are replaced by a copy."""

from __future__ import annotations

import pytest
from tests.fakes.openviking import FakeOpenViking

from everthread.adapters.memory.openviking.codec import EntryMark, SessionMessage, SessionTags, copy_name
from everthread.adapters.memory.openviking.session_cache import SessionCache
from everthread.domain.errors import Unavailable


def message(seq: int, text: str = "") -> SessionMessage:
    return SessionMessage("user", text or f"word {seq}", EntryMark(seq, "turn", seq, 0))


def cache_of(api: FakeOpenViking) -> SessionCache:
    return SessionCache("openviking", api)  # pyright: ignore[reportArgumentType] - the part that it calls


async def test_a_state_is_read_again_only_if_the_session_has_changed() -> None:
    api = FakeOpenViking()
    cache = cache_of(api)
    state = await cache.append("ann", "s1", await cache.get_or_create("ann", "s1"), [message(1)])
    assert await cache.get("ann", "s1") == state
    assert api.reads == 0
    await api.append("ann", "s1", [message(2)])
    changed = await cache.get_existing("ann", "s1")
    assert ([one.text for one in changed.live], api.reads) == (["word 1", "word 2"], 1)


async def test_a_missing_session_has_no_state() -> None:
    cache = cache_of(FakeOpenViking())
    assert await cache.get("ann", "s1") is None
    with pytest.raises(Unavailable, match="disappeared"):
        await cache.get_existing("ann", "s1")


async def test_tags_are_stored_and_processed_archives_leave_the_state() -> None:
    api = FakeOpenViking()
    cache = cache_of(api)
    await cache.append("ann", "s1", await cache.get_or_create("ann", "s1"), [message(1)])
    await api.commit("ann", "s1", [])
    state = await cache.get_existing("ann", "s1")
    assert [archive.number for archive in state.open] == [1]
    state = await cache.set_tags("ann", "s1", state, SessionTags(parent="s0", settled=1))
    assert state.open == ()
    assert (await cache_of(api).get_existing("ann", "s1")).tags.parent == "s0"


async def test_a_rewritten_session_has_the_new_messages_and_leaves_no_copy() -> None:
    api = FakeOpenViking()
    cache = cache_of(api)
    state = await cache.append("ann", "s1", await cache.get_or_create("ann", "s1"), [message(1), message(2)])
    state = await cache.rewrite("ann", "s1", state, (message(2),))
    assert [one.text for one in state.live] == ["word 2"]
    assert list(api.stored) == ["s1"]


@pytest.mark.parametrize("has_original", [True, False])
async def test_an_interrupted_replacement_is_finished_from_the_complete_copy(has_original: bool) -> None:
    api = FakeOpenViking()
    await api.create("ann", copy_name("s1"), SessionTags(parent="s0").tags)
    await api.append("ann", copy_name("s1"), [message(1), message(2)])
    if has_original:
        await api.create("ann", "s1", SessionTags(partial=True).tags)
        await api.append("ann", "s1", [message(1)])
    state = await cache_of(api).get_existing("ann", "s1")
    assert [one.text for one in state.live] == ["word 1", "word 2"]
    assert (state.tags.parent, state.tags.partial, list(api.stored)) == ("s0", False, ["s1"])
