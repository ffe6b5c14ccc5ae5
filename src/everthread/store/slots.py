"""Slots of running turns, and their tool calls."""

from __future__ import annotations

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Fate, SessionRef, Slot, Thought, ToolRow, ToolState
from everthread.store.database import Table
from everthread.store.sql import Row, by_value, key_of

_FATES = by_value(Fate)
_SLOT = "turn_id, session_id, generation, key, epoch, owner, holder, fence, fate, inbox_id, begun_at, forgotten"

_ACTING = "fate = 'live' AND generation = (SELECT s.generation FROM sessions s WHERE s.id = slots.session_id)"


class Slots(Table):
    """Running turns: one live slot per session, with its holder and fence."""

    def add(self, slot: Slot) -> None:
        ref = slot.ref
        self._execute(
            f"INSERT INTO slots ({_SLOT}) VALUES ({'?, ' * 11}?)",
            (
                *(slot.turn_id, ref.session_id, ref.generation, str(ref.key), ref.epoch, ref.owner),
                *(slot.holder, slot.fence, slot.fate, slot.inbox_id, slot.begun_at, slot.forgotten),
            ),
        )

    def get(self, turn_id: str) -> Slot | None:
        row = self._first(f"SELECT {_SLOT} FROM slots WHERE turn_id = ?", (turn_id,))
        return _slot(row) if row else None

    def acting(self, turn_id: str) -> Slot | None:
        """Return the slot of a turn that runs, in any process, and that no boundary has cancelled."""
        row = self._first(f"SELECT {_SLOT} FROM slots WHERE turn_id = ? AND {_ACTING}", (turn_id,))
        return _slot(row) if row else None

    def acting_of(self, holder: str) -> frozenset[tuple[str, int]]:
        """Return turn id and fence of the process's turns that may act."""
        rows = self._execute(f"SELECT turn_id, fence FROM slots WHERE holder = ? AND {_ACTING}", (holder,))
        return frozenset((row[0], row[1]) for row in rows)

    def live(self, session_id: str) -> Slot | None:
        """Return the slot of the session's running turn."""
        row = self._first(f"SELECT {_SLOT} FROM slots WHERE session_id = ? AND fate = 'live'", (session_id,))
        return _slot(row) if row else None

    def of_session(self, session_id: str) -> tuple[Slot, ...]:
        rows = self._execute(f"SELECT {_SLOT} FROM slots WHERE session_id = ? ORDER BY turn_id", (session_id,))
        return tuple(_slot(row) for row in rows)

    def delegated(self, session_id: str) -> bool:
        """Return whether a delegated child of the session has a running turn."""
        return self._exists(
            "SELECT 1 FROM sessions s JOIN slots ON slots.session_id = s.id AND slots.fate = 'live' "
            "WHERE s.parent_id = ? AND s.kind = 'subagent' LIMIT 1",
            (session_id,),
        )

    def held_by(self, holder: str) -> bool:
        """Return whether the process holds any slot."""
        return self._exists("SELECT 1 FROM slots WHERE holder = ? LIMIT 1", (holder,))

    def set_fate(self, turn_id: str, fate: Fate) -> None:
        self._execute("UPDATE slots SET fate = ? WHERE turn_id = ?", (fate.value, turn_id))

    def take_over(self, turn_id: str, holder: str) -> Slot:
        """Move the slot to another process, under a higher fence."""
        row = self._first(
            f"UPDATE slots SET holder = ?, fence = fence + 1 WHERE turn_id = ? RETURNING {_SLOT}", (holder, turn_id)
        )
        assert row is not None
        return _slot(row)

    def drop(self, turn_id: str) -> None:
        self._execute("DELETE FROM slots WHERE turn_id = ?", (turn_id,))

    def orphans(self, now: float) -> tuple[Slot, ...]:
        """Return the slots whose process has lost its lease."""
        columns = ", ".join(f"s.{column.strip()}" for column in _SLOT.split(","))
        rows = self._execute(
            f"SELECT {columns} FROM slots s LEFT JOIN leases l ON l.name = 'process:' || s.holder "
            "WHERE l.name IS NULL OR l.expires_at <= ? ORDER BY s.turn_id",
            (now,),
        )
        return tuple(_slot(row) for row in rows)

    def start_tool(self, row: ToolRow, owner: str) -> None:
        """Record a tool call as started. Raise `BadInput` if the turn has a call with this id."""
        added = self._first(
            "INSERT INTO tool_rows (turn_id, call_id, owner, name, arguments, position, state, result, thought, "
            "thinker) VALUES (?, ?, ?, ?, ?, (SELECT COUNT(*) FROM tool_rows WHERE turn_id = ?), ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING call_id",
            (
                *(row.turn_id, row.call_id, owner, row.name, row.arguments, row.turn_id, row.state.value),
                *(row.result, *((row.thought.content, row.thought.model) if row.thought else (None, None))),
            ),
        )
        if added is None:
            raise BadInput(f"This turn already has a tool call {row.call_id!r}. Give each call its own id.")

    def finish_tool(self, turn_id: str, call_id: str, result: str) -> None:
        """Record the result of a tool call. Raise `NotFound` if it was not started."""
        done = self._first(
            "UPDATE tool_rows SET state = ?, result = ? WHERE turn_id = ? AND call_id = ? RETURNING call_id",
            (ToolState.DONE.value, result, turn_id, call_id),
        )
        if done is None:
            raise NotFound(f"No tool call {call_id!r} was started in this turn.")

    def tools(self, turn_id: str) -> tuple[ToolRow, ...]:
        rows = self._execute(
            "SELECT turn_id, call_id, name, arguments, state, result, thought, thinker FROM tool_rows "
            "WHERE turn_id = ? ORDER BY position",
            (turn_id,),
        )
        return tuple(_tool_row(row) for row in rows)

    def drop_tools(self, turn_id: str) -> None:
        self._execute("DELETE FROM tool_rows WHERE turn_id = ?", (turn_id,))


def _slot(row: Row) -> Slot:
    ref = SessionRef(row[1], row[2], key_of(row[3]), row[4], row[5])
    return Slot(row[0], ref, row[6], row[7], _FATES[row[8]], row[9], row[10], row[11])


def _tool_row(row: Row) -> ToolRow:
    turn_id, call_id, name, arguments, state, result, thought, thinker = row
    known = None if thought is None else Thought(thought, thinker)
    return ToolRow(turn_id, call_id, name, arguments, ToolState(state), result, known)
