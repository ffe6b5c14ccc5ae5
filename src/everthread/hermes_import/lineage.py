"""The parent of each session, and the kind of relation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from everthread.hermes_import.rows import SessionRow

MISSING = "its parent is no longer in the database; it is imported without a parent"
CIRCLE = "its chain of parents is a circle; it is imported without a parent"


class Relation(StrEnum):
    """The relation of a session to its parent."""

    NONE = "none"
    BRANCH = "branch"
    COMPRESSION = "compression"
    DELEGATE = "delegate"
    OTHER = "other"


class LinkedSession(Struct, frozen=True):
    row: SessionRow
    parent: str | None
    relation: Relation
    remark: str = ""


def order_by_parent(rows: Iterable[SessionRow]) -> list[LinkedSession]:
    """Return all sessions, parents before children, each with its effective parent."""
    known = {row.id: row for row in rows}
    parents = {row.id: row.parent if row.parent in known else None for row in known.values()}
    circled = _cut_cycles(known, parents)
    ordered: list[LinkedSession] = []
    placed: set[str] = set()
    for row in known.values():
        line: list[str] = []
        at: str | None = row.id
        while at is not None and at not in placed:
            line.append(at)
            placed.add(at)
            at = parents[at]
        ordered += [_member(known[each], known, parents[each], each in circled) for each in reversed(line)]
    return ordered


def _cut_cycles(known: Mapping[str, SessionRow], parents: dict[str, str | None]) -> set[str]:
    """Remove the parent of the oldest session in each cycle. Return the ids of these sessions."""
    cut: set[str] = set()
    sound: set[str] = set()
    for start in known:
        line: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in sound and at not in line:
            line[at] = None
            at = parents[at]
        if at is not None and at in line:
            path = list(line)
            oldest = min(path[path.index(at) :], key=lambda each: (known[each].started_at, each))
            parents[oldest] = None
            cut.add(oldest)
        sound |= line.keys()
    return cut


def _member(row: SessionRow, known: Mapping[str, SessionRow], parent: str | None, circled: bool) -> LinkedSession:
    if parent is not None:
        return LinkedSession(row, parent, _find_relation(row, known[parent]))
    relation = Relation.DELEGATE if _is_delegated(row) else Relation.NONE
    return LinkedSession(row, None, relation, CIRCLE if circled else MISSING if row.parent else "")


def _find_relation(row: SessionRow, parent: SessionRow) -> Relation:
    if row.marks.get("_branched_from"):
        return Relation.BRANCH
    if _is_delegated(row):
        return Relation.DELEGATE
    behind = parent.ended_at is not None and row.started_at >= parent.ended_at
    if parent.end_reason == "compression":
        return Relation.COMPRESSION
    # Older versions have no mark, so use the end reason of the parent.
    return Relation.BRANCH if parent.end_reason == "branched" and behind else Relation.OTHER


def _is_delegated(row: SessionRow) -> bool:
    return bool(row.marks.get("_delegate_from")) or row.source in ("subagent", "delegate")
