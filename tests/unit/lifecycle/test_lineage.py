from pathlib import Path

from tests.runtime import CLI, ME, CoreFixture, opened

from everthread.domain.boundary import Branch
from everthread.lifecycle import ForgetSession
from everthread.lifecycle.lineage import drop_inherited, nearest_ancestor, rewound_turns


async def test_a_forgotten_parent_is_skipped(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        root = (await core.turn(CLI, "one")).ref.session_id
        middle = opened(await core.cross(CLI, Branch()))
        await core.turn(CLI, "two")
        leaf = opened(await core.cross(CLI, Branch()))
        session = await core.session(leaf)
        found = await core.store.read(lambda uow: nearest_ancestor(uow, session))
        assert found.parent is not None
        assert (found.parent.id, found.turn) == (middle, 2)
        await core.lifecycle.forget(ForgetSession(middle), owner=ME)
        found = await core.store.read(lambda uow: nearest_ancestor(uow, session))
        assert found.parent is not None
        assert (found.parent.id, found.turn) == (root, 1)


def test_turns_of_a_rewind_are_sorted_and_damaged_details_have_none() -> None:
    assert rewound_turns({"turns": [3, 2]}) == (2, 3)
    assert rewound_turns({"turns": None}) == rewound_turns(None) == ()


async def test_inherited_turns_after_the_base_are_dropped(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        for text in ("one", "two", "three"):
            await core.turn(CLI, text)
        session = await core.session(opened(await core.cross(CLI, Branch())))
        assert drop_inherited((1, 2, 3, 4), 1, session) == (1, 4)
