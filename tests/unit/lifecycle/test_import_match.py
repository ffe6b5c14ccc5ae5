import pytest

from everthread.domain.export_format import Base, Item, RewindLine, TurnLine
from everthread.domain.model import TurnStatus
from everthread.lifecycle.import_match import (
    Diverged,
    ImportedSession,
    ImportOutcome,
    StoredCounterpart,
    new_lines,
    replacement_id,
)


def turn(number: int, turn_id: str) -> TurnLine:
    return TurnLine("s1", number, turn_id, 1.0, (), TurnStatus.DONE, False)


def test_only_lines_that_the_store_lacks_are_new() -> None:
    found = StoredCounterpart(ImportOutcome.SAME, "s1", {1: "t1"})
    assert list(new_lines(found, [turn(1, "t1"), turn(2, "t2")])) == [turn(2, "t2")]


@pytest.mark.parametrize(
    "items", [[turn(1, "other")], [turn(2, "t2")], [RewindLine("s1", 1.0, (1,))]], ids=["changed", "missing", "rewound"]
)
def test_a_diverged_session_is_recognised_before_its_first_new_line(items: list[Item]) -> None:
    with pytest.raises(Diverged):
        next(new_lines(StoredCounterpart(ImportOutcome.SAME, "s1", {1: "t1"}), items))


def test_a_child_depends_on_the_turns_and_rewinds_of_its_base() -> None:
    partly = ImportedSession(ImportOutcome.BUSY, "s1", has=Base(3, 1))
    assert partly.reaches(Base(3, 1))
    assert not partly.reaches(Base(4, 1))
    assert not partly.reaches(Base(3, 2))
    assert not ImportedSession(ImportOutcome.DIFFERENT, None).reaches(Base(0, 0))


def test_the_replacement_of_an_id_is_stable_and_differs_by_owner() -> None:
    assert replacement_id("s1", "ann") == replacement_id("s1", "ann") != replacement_id("s1", "bob")
    assert len(replacement_id("s1", "ann")) == 26
