"""Sessions in OpenViking: missing messages, commits, rewinding and forgetting."""

from __future__ import annotations

import pytest
from tests.fakes.openviking import FakeOpenViking

from everthread.adapters.memory.openviking.codec import SessionMessage, entry_messages
from everthread.adapters.memory.openviking.sessions import OpenVikingSessions
from everthread.domain.errors import Unavailable
from everthread.domain.model import FORGOTTEN


def sessions_of(api: FakeOpenViking) -> OpenVikingSessions:
    async def no_sleep(seconds: float) -> None:
        return None

    return OpenVikingSessions("openviking", api, no_sleep)  # pyright: ignore[reportArgumentType] - the part it calls


def turn(number: int, text: str) -> tuple[SessionMessage, ...]:
    return entry_messages([("user", text), ("assistant", "I see.")], seq=number, kind="turn", turn=number, at=None)


async def close(sessions: OpenVikingSessions, through: int) -> None:
    await sessions.close("ann", "s1", through, (), None)


async def test_a_repeated_entry_is_appended_once_also_after_its_commit() -> None:
    api = FakeOpenViking()
    for _ in range(2):
        await sessions_of(api).append("ann", "s1", turn(1, "I keep bees"))
    assert len(api.stored["s1"].live) == 2
    await close(sessions_of(api), 1)
    await sessions_of(api).append("ann", "s1", turn(1, "I keep bees"))
    assert api.stored["s1"].live == []
    assert [memory.content for memory in api.memories.values()] == ["I keep bees"]


async def test_a_failed_extraction_is_repeated_by_the_next_close() -> None:
    api = FakeOpenViking()
    api.fails_next = 1
    await sessions_of(api).append("ann", "s1", turn(1, "I keep bees"))
    with pytest.raises(Unavailable, match="could not extract memories"):
        await close(sessions_of(api), 1)
    assert api.memories == {}
    await close(sessions_of(api), 1)
    assert [memory.content for memory in api.memories.values()] == ["I keep bees"]
    assert len(api.stored["s1"].archives) == 2


async def test_a_rewound_turn_loses_its_messages_and_its_memories() -> None:
    api = FakeOpenViking()
    sessions = sessions_of(api)
    await sessions.append("ann", "s1", turn(1, "I keep bees"))
    await close(sessions, 1)
    await sessions.append("ann", "s1", turn(2, "I paint hives"))
    await sessions.append("ann", "s1", turn(3, "I sell honey"))
    await sessions.rewind("ann", "s1", {1, 2})
    assert [one.text for one in api.stored["s1"].live] == ["I sell honey", "I see."]
    assert api.memories == {}


async def test_a_duplicate_of_a_late_request_is_removed_before_the_commit() -> None:
    api = FakeOpenViking()
    sessions = sessions_of(api)
    await sessions.append("ann", "s1", turn(1, "I keep bees"))
    await api.append("ann", "s1", turn(1, "I keep bees"))
    await close(sessions, 1)
    assert [memory.content for memory in api.memories.values()] == ["I keep bees"]


async def test_a_forgotten_session_leaves_neither_messages_nor_memories() -> None:
    api = FakeOpenViking()
    sessions = sessions_of(api)
    await sessions.set_parent("ann", "s1", "s0")
    await sessions.append("ann", "s1", turn(1, "I keep bees"))
    await close(sessions, 1)
    await sessions.forget_session("ann", "s1")
    assert (api.stored, api.memories) == ({}, {})


async def test_a_forgotten_text_leaves_live_messages_and_memories() -> None:
    api = FakeOpenViking()
    sessions = sessions_of(api)
    await sessions.append("ann", "s1", turn(1, "the code is 4711, I think"))
    await close(sessions, 1)
    await sessions.append("ann", "s1", turn(2, "say 4711 again"))
    await sessions.forget_text("ann", "4711")
    assert [one.text for one in api.stored["s1"].live] == [f"say {FORGOTTEN} again", "I see."]
    assert [memory.content for memory in api.memories.values()] == [f"the code is {FORGOTTEN}, I think"]


async def test_a_forgotten_user_leaves_nothing() -> None:
    api = FakeOpenViking()
    sessions = sessions_of(api)
    await sessions.append("ann", "s1", turn(1, "I keep bees"))
    await close(sessions, 1)
    await sessions.forget_user("ann")
    assert (api.stored, api.memories) == ({}, {})
