"""The explored world: steps are taken back whole, and equal states have equal fingerprints."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.explorer.actions import Action, crash_variants
from tests.explorer.copying import duplicate
from tests.explorer.fingerprint import fingerprint
from tests.explorer.scenarios import SCENARIOS
from tests.explorer.stepped_store import BEFORE_STATEMENT
from tests.explorer.world import World


@pytest.fixture
def world() -> Iterator[World]:
    logging.disable(logging.CRITICAL)
    world = next(scenario for scenario in SCENARIOS if scenario.name == "shared session").new_world()
    yield world
    world.close()
    logging.disable(logging.NOTSET)


def test_a_branch_is_taken_back_whole(world: World) -> None:
    before, rows = fingerprint(world), world.rows("SELECT * FROM sessions")
    with world.undo_after():
        for verb in ("converse", "new", "branch"):
            world.perform(Action(verb, key="K"))
        world.perform(Action("deliver"))
        assert fingerprint(world) != before
    assert fingerprint(world) == before
    assert world.rows("SELECT * FROM sessions") == rows


def test_steps_at_different_keys_give_one_state_in_any_order(world: World) -> None:
    world.perform(Action("new", key="K"))
    steps = (Action("reset", key="K"), Action("rewind", key="L", detail="1"))
    marks: list[tuple[bytes, bytes]] = []
    for order in (steps, steps[::-1]):
        with world.undo_after():
            for action in order:
                world.perform(action)
            marks.append(fingerprint(world))
    assert marks[0] == marks[1] != fingerprint(world)


def test_a_process_that_is_killed_before_a_commit_has_done_nothing(world: World) -> None:
    new, sessions = Action("new", key="K"), world.rows("SELECT * FROM sessions")
    with world.undo_after():
        outcome = world.perform(new)
    variants = crash_variants(new, outcome, each_statement=True)
    assert sum(variant.crash is not None and variant.crash.when == BEFORE_STATEMENT for variant in variants) > 5
    for variant in variants[:-1]:
        with world.undo_after():
            world.perform(variant)
            assert world.state.used["crashes"] == 1, variant
            assert world.rows("SELECT * FROM sessions") == sessions, variant
    with world.undo_after():
        world.perform(variants[-1])
        assert world.state.used["crashes"] == 1
        assert world.rows("SELECT * FROM sessions") != sessions


def test_a_step_that_is_refused_makes_no_other_state(world: World) -> None:
    before = fingerprint(world)
    with world.undo_after():
        world.perform(Action("resume", key="K", detail=""))
        assert fingerprint(world) == before


def test_a_copy_of_the_state_shares_nothing_that_changes(world: World) -> None:
    copy = duplicate(world.state)
    with world.undo_after():
        world.perform(Action("converse", key="K"))
        changed = world.state
    assert copy.model.fates == world.state.model.fates != changed.model.fates
    session = next(iter(copy.model.sessions.values()))
    session.log.append(("mark",))
    assert ("mark",) not in world.state.model.sessions[session.id].log
