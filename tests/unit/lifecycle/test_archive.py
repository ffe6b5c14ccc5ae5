from pathlib import Path

from tests.runtime import CLI, CoreFixture

from everthread.domain.boundary import New
from everthread.lifecycle.archive import leaves_first, prunable


def test_parents_follow_their_last_child_and_a_parent_of_a_kept_child_stays() -> None:
    children = [("a", "b"), ("b", "c"), ("d", "e"), ("d", "f")]
    assert leaves_first({"a", "b", "c", "d", "f"}, children) == ["c", "f", "b", "a"]


async def test_an_ended_session_is_pruned_and_an_open_one_is_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        current = (await core.turn(CLI, "two")).ref.session_id
        later = core.clock.now() + 1.0
        found = await core.store.read(lambda uow: prunable(uow, later))
        assert [session.id for session in found.sessions] == [old]
        assert await core.lifecycle.prune([old, current], before=later) == (1, 1)
        assert await core.store.read(lambda uow: uow.sessions.get(old)) is None
        assert await core.shown(current) == ["two"]
