"""Trees of related sessions, drawn from plain values."""

from __future__ import annotations

import re

from everthread.cli.commands.sessions.tree import build_trees, draw
from everthread.domain.model import Cause, Session, SessionKey, SessionKind
from everthread.store.sessions import BoundaryRow

KEY = SessionKey.parse("agent:main:cli:dm:1")


def session(name: str, parent: str | None = None, cause: Cause = Cause.NEW, title: str | None = None) -> Session:
    return Session(name, "me", KEY, SessionKind.CHAT, cause, 1.0, parent_id=parent, title=title)


def resumed(number: int, left: str, to: str) -> BoundaryRow:
    return BoundaryRow("resume", KEY, "me", left, to, 1, "user", 1.0, number)


FAMILY = [
    session("a", title="Lisbon"),
    session("b", "a", Cause.BRANCH, "Lisbon #2"),
    session("c", "b", Cause.COMPRESSION, "Lisbon #3"),
    session("d", "a", Cause.BRANCH),
]


def test_branches_and_continuations_are_drawn_with_their_causes() -> None:
    [root] = build_trees(FAMILY, {"a": 3, "b": 4, "c": 1, "d": 0}, [])
    assert list(draw(root, 100)) == [
        "Lisbon (3 turns, open) a",
        "├─ branch: Lisbon #2 (4 turns, open) b",
        "│  └─ continuation: Lisbon #3 (1 turn, open) c",
        "└─ branch: - (0 turns, open) d",
    ]


def test_resumes_are_listed_below_their_session_in_order() -> None:
    rows = [resumed(3, "d", "a"), resumed(2, "elsewhere", "a"), resumed(4, "c", "b"), resumed(5, "a", "a")]
    [root] = build_trees(FAMILY, {}, rows)
    lines = [re.sub(r" \d{4}-.*", "", line) for line in draw(root, 100)]
    assert lines[1:3] == ["│   ↩ from elsewhere", "│   ↩ from d"]
    assert lines[3].startswith("├─ branch: Lisbon #2")
    assert lines[4] == "│  │   ↩ from Lisbon #3"


def test_a_narrow_terminal_shortens_titles_only() -> None:
    long = [session("a", title="A journey through all of Portugal"), session("b", "a", Cause.BRANCH, "x" * 80)]
    [root] = build_trees(long, {}, [resumed(1, "somewhere far away", "b")])
    lines = list(draw(root, 40))
    assert lines[0] == "A journey through a... (0 turns, open) a"
    assert lines[1] == "└─ branch: xxxxxxxx... (0 turns, open) b"
    assert max(len(line) for line in lines) <= 40
    # Narrower than the fixed columns: they are printed all the same.
    assert [line[-2:] for line in draw(root, 10)][:2] == [" a", " b"]


def test_a_session_without_its_parent_is_a_root() -> None:
    roots = build_trees([session("b", "gone", Cause.BRANCH), session("c", "b", Cause.BRANCH)], {}, [])
    assert [root.session.id for root in roots] == ["b"]
    assert [child.session.id for child in roots[0].children] == ["c"]


def test_a_title_cannot_move_the_cursor() -> None:
    [root] = build_trees([session("a", title="x\x1b[31m\ny")], {}, [])
    assert list(draw(root, 80)) == ["x [31m y (0 turns, open) a"]


def test_a_chain_of_thousands_of_sessions_is_drawn() -> None:
    line = [session("0")] + [session(str(n), str(n - 1), Cause.COMPRESSION) for n in range(1, 3000)]
    [root] = build_trees(line, {}, [])
    assert len(list(draw(root, 80))) == 3000
