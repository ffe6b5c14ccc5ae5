"""What has happened, behind a mark: the audit trail of boundaries, and the turns in the logs."""

from __future__ import annotations

from heapq import merge

from everthread.adapters.stores.tables.rows import Execute, first, key_of
from everthread.domain.model import TurnStatus
from everthread.ports.news import BoundaryRow, Mark, TurnNews


class NewsTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def end(self) -> Mark:
        row = first(
            self._execute(
                "SELECT (SELECT COALESCE(MAX(id), 0) FROM boundaries), (SELECT COALESCE(MAX(pos), 0) FROM log)"
            )
        )
        assert row is not None
        return Mark(*row)

    def after(self, owner: str, mark: Mark, window: int) -> tuple[tuple[BoundaryRow | TurnNews, ...], Mark]:
        end = self.end()
        # Rows are looked for by number, so that following costs what is new and not what is there.
        to = Mark(min(mark.boundary + window, end.boundary), min(mark.pos + window, end.pos))
        boundaries = self._execute(
            "SELECT kind, key, owner, from_session, to_session, epoch, actor, at, id FROM boundaries "
            "WHERE id > ? AND id <= ? AND owner = ? ORDER BY id",
            (mark.boundary, to.boundary, owner),
        )
        turns = self._execute(
            "SELECT l.pos, l.session_id, l.key, l.number, t.turn_id, t.status, t.at FROM log l "
            "JOIN turns t ON t.session_id = l.session_id AND t.number = l.number "
            "WHERE l.pos > ? AND l.pos <= ? AND l.owner = ? AND l.kind = 'turn' ORDER BY l.pos",
            (mark.pos, to.pos, owner),
        )
        happened = [
            TurnNews(row[0], row[1], key_of(row[2]), row[3], row[4], TurnStatus(row[5]), row[6]) for row in turns
        ]
        crossed = [BoundaryRow(row[0], key_of(row[1]), *row[2:]) for row in boundaries]
        # Whatever the clock did: what comes first in its own row comes first here.
        return tuple(merge(crossed, happened, key=lambda one: one.at)), to
