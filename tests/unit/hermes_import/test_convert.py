"""Sessions of Hermes as sessions of this program."""

from __future__ import annotations

from tests.hermes_rows import START, Rows, session, translated, words

from everthread.domain.export_format import RewindLine
from everthread.domain.model import Cause, SessionKind
from everthread.hermes_import.convert import our_id


def test_an_invalid_id_always_gets_the_same_replacement() -> None:
    assert our_id("20250101_000000_abcdef") == "20250101_000000_abcdef"
    assert our_id("a b:c") == our_id("a b:c") != our_id("a b:d")
    assert our_id("a b:c").startswith("hermes-")
    assert len(our_id("x" * 999, 3)) < 300


def test_a_branch_inherits_its_parents_turns_and_stores_only_new_ones() -> None:
    mark = {"_branched_from": "p"}
    found, _ = translated(
        (session("p"), Rows().talk("a", "b", "c").rows),
        (session("c", "p", marks=mark), Rows().talk("a", "b", "x").rows),
    )
    line = found["c"].line
    assert (line.parent, line.base.turn, line.cause) == ("p", 2, Cause.BRANCH)
    assert (words(found["c"]), found["c"].turns[0].number) == (["x"], 3)


def test_a_turn_that_a_branch_has_in_part_belongs_to_the_branch() -> None:
    rows = Rows().talk("a").say("user", "b").say("assistant", "Something else.").rows
    found, _ = translated(
        (session("p"), Rows().talk("a", "b").rows), (session("c", "p", marks={"_branched_from": "p"}), rows)
    )
    assert (found["c"].line.base.turn, words(found["c"])) == (1, ["b"])


def test_a_branch_is_unchanged_when_its_parent_continues_after_a_rewind() -> None:
    parent, rows = session("p"), Rows().talk("a", "b").talk("undone", active=False)
    child = session("c", "p", started_at=START + 50, marks={"_branched_from": "p"})
    copies = Rows(START + 50).talk("a", "b", "mine").rows
    before, _ = translated((parent, list(rows.rows)), (child, copies))
    after, _ = translated((parent, rows.talk("c").rows), (child, copies))
    assert (after["c"].line, after["c"].turns) == (before["c"].line, before["c"].turns)
    assert (after["c"].line.base.turn, words(after["c"])) == (2, ["mine"])


def test_a_branch_that_is_not_a_copy_keeps_all_its_turns() -> None:
    mark = {"_branched_from": "p"}
    found, _ = translated(
        (session("p"), Rows().talk("a").rows), (session("c", "p", marks=mark), Rows().talk("z", "a").rows)
    )
    assert (found["c"].line.parent, found["c"].line.base.turn, words(found["c"])) == ("p", 0, ["z", "a"])


def test_delegated_work_is_a_session_that_inherits_nothing() -> None:
    mark = {"_delegate_from": "p"}
    found, _ = translated(
        (session("p"), Rows().talk("a").rows), (session("c", "p", marks=mark), Rows().talk("do it").rows)
    )
    line = found["c"].line
    assert (line.kind, line.cause, line.parent, line.base.turn) == (SessionKind.SUBAGENT, Cause.DELEGATION, "p", 0)


def test_rewound_turns_are_hidden_and_known_rewinds_precede_new_turns() -> None:
    rows = Rows().talk("a").talk("b", active=False).talk("c").talk("d", active=False).talk("e")
    found, _ = translated((session("s"), rows.rows))
    arriving = found["s"]

    def shape(known: dict[int, str], rewinds: list[tuple[int, ...]]) -> list[object]:
        items = arriving.items(known, rewinds)
        return [item.turns if isinstance(item, RewindLine) else getattr(item, "number", None) for item in items]

    assert shape({}, []) == [1, 2, 3, 4, 5, (2, 4)]
    assert shape({1: "", 2: "", 3: ""}, [(2,)]) == [1, 2, 3, (2,), 4, 5, (4,)]
