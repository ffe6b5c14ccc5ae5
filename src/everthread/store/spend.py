"""The cost of model calls: reserved before a call, settled after it."""

from __future__ import annotations

import math
from collections.abc import Collection

from everthread.domain.model import SessionRef
from everthread.domain.spend import ModelUsage, SpendEntry
from everthread.store.database import Table
from everthread.store.sql import placeholders


class Spend(Table):
    """One row per model call."""

    def reserve(self, ref: SessionRef, turn_id: str, model: str, amount: float, now: float) -> int:
        """Reserve an amount before a call and return the row's id."""
        return self._database.insert(
            "INSERT INTO spend (owner, session_id, turn_id, model, reserved, at) VALUES (?, ?, ?, ?, ?, ?)",
            (ref.owner, ref.session_id, turn_id, model, amount, now),
        )

    def settle(self, spent: SpendEntry, ref: SessionRef, turn_id: str, now: float) -> None:
        """Record the cost of a call, with or without a reservation."""
        tokens = (spent.input_tokens, spent.output_tokens)
        if spent.spend_id is None:
            self._execute(
                "INSERT INTO spend (owner, session_id, turn_id, model, reserved, settled, input_tokens, "
                "output_tokens, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (ref.owner, ref.session_id, turn_id, spent.model, spent.amount, spent.amount, *tokens, now),
            )
            return
        self._execute(
            "UPDATE spend SET settled = ?, input_tokens = ?, output_tokens = ? WHERE id = ?",
            (spent.amount, *tokens, spent.spend_id),
        )

    def total(self, owner: str, since: float, until: float = math.inf) -> float:
        """Return the owner's cost in that time: settled amounts, and reservations of calls that still run."""
        return self._value(
            "SELECT COALESCE(SUM(COALESCE(settled, reserved)), 0.0) FROM spend WHERE owner = ? AND at >= ? AND at <= ?",
            (owner, since, until),
        )

    def of_turn(self, ref: SessionRef, turn_id: str, since: float) -> float:
        """Return the cost of one turn, or of other work that uses a turn id."""
        return self._value(
            "SELECT COALESCE(SUM(COALESCE(settled, reserved)), 0.0) FROM spend "
            "WHERE owner = ? AND at >= ? AND session_id = ? AND turn_id = ?",
            (ref.owner, since, ref.session_id, turn_id),
        )

    def by_model(
        self, owner: str, since: float, sessions: Collection[str] | None = None, *, until: float = math.inf
    ) -> tuple[ModelUsage, ...]:
        """Return the usage of each model in that time, in these sessions or in all, the most expensive first."""
        if sessions is not None and not sessions:
            return ()
        concerns = "" if sessions is None else f"AND session_id IN ({placeholders(len(sessions))})"
        rows = self._execute(
            "SELECT model, COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(COALESCE(settled, 0.0)) AS amount, "
            "SUM(CASE WHEN settled IS NULL THEN reserved ELSE 0.0 END) AS waiting "
            f"FROM spend WHERE owner = ? AND at >= ? AND at <= ? {concerns} GROUP BY model "
            "ORDER BY amount + waiting DESC, model",
            (owner, since, until, *(sessions or ())),
        )
        return tuple(ModelUsage(*row) for row in rows)
