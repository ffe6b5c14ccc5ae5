"""Which sessions of Hermes's grew out of which: branches, summaries, delegated work, and what was taken back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hermes_rows import START, session

from everthread.hermes_import.lineage import CIRCLE, MISSING, Relation, order_by_parent

# --- Lineage ---------------------------------------------------------------------------------------------------------


def test_parents_come_first_and_missing_parents_and_cycles_are_reported() -> None:
    rows = [
        session("child", "parent", started_at=START + 9),
        session("parent", started_at=START),
        session("orphan", "gone"),
        session("b", "a", started_at=START + 2),
        session("c", "b", started_at=START + 3),
        session("a", "c", started_at=START + 1),
        session("own", "own"),
    ]
    found = {member.row.id: member for member in order_by_parent(rows)}
    order = list(found)
    assert sorted(order) == sorted(row.id for row in rows)
    assert order.index("parent") < order.index("child")
    assert [order.index(each) for each in "abc"] == sorted(order.index(each) for each in "abc")
    assert (found["orphan"].parent, found["orphan"].remark) == (None, MISSING)
    assert (found["a"].parent, found["a"].remark) == (None, CIRCLE)
    assert (found["b"].parent, found["c"].parent) == ("a", "b")
    assert (found["own"].parent, found["own"].remark) == (None, CIRCLE)


@pytest.mark.parametrize(
    ("child", "parent", "relation"),
    [
        ({"marks": {"_branched_from": "p"}}, {"end_reason": "compression"}, Relation.BRANCH),
        ({"marks": {"_delegate_from": "p"}}, {}, Relation.DELEGATE),
        ({"source": "subagent"}, {}, Relation.DELEGATE),
        ({}, {"end_reason": "compression", "ended_at": START}, Relation.COMPRESSION),
        ({}, {"end_reason": "branched", "ended_at": START}, Relation.BRANCH),
        ({"started_at": START - 9}, {"end_reason": "branched", "ended_at": START}, Relation.OTHER),
        ({}, {}, Relation.OTHER),
    ],
)
def test_the_edge_to_the_parent_is_classified(
    child: dict[str, Any], parent: dict[str, Any], relation: Relation
) -> None:
    found = {member.row.id: member for member in order_by_parent([session("p", **parent), session("c", "p", **child)])}
    assert found["c"].relation is relation
