"""Pins of MCP tools: the definition of each tool as the user approved it."""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Table

_COLUMNS = "server, tool, identity, digest, definition, at"


class ToolPin(Struct, frozen=True):
    server: str
    tool: str
    identity: str
    digest: str
    definition: str
    """Description, parameters and annotations as JSON."""
    at: float


class ToolPins(Table):
    """One row for each tool of a server."""

    def get(self, server: str, tool: str) -> ToolPin | None:
        row = self._first(f"SELECT {_COLUMNS} FROM tool_pins WHERE server = ? AND tool = ?", (server, tool))
        return ToolPin(*row) if row is not None else None

    def all(self) -> tuple[ToolPin, ...]:
        """Return all pins, by server and tool."""
        return tuple(ToolPin(*row) for row in self._execute(f"SELECT {_COLUMNS} FROM tool_pins ORDER BY server, tool"))

    def add(self, pin: ToolPin) -> ToolPin:
        """Add a pin unless the tool has one. Return the stored pin."""
        self._execute(
            f"INSERT INTO tool_pins ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", _values(pin)
        )
        stored = self.get(pin.server, pin.tool)
        assert stored is not None
        return stored

    def put(self, pin: ToolPin) -> None:
        """Store a pin in place of the tool's earlier one."""
        self._execute(
            f"INSERT INTO tool_pins ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (server, tool) DO UPDATE "
            "SET identity = excluded.identity, digest = excluded.digest, definition = excluded.definition, "
            "at = excluded.at",
            _values(pin),
        )

    def remove(self, server: str, tool: str = "") -> tuple[ToolPin, ...]:
        """Remove the pin of a tool, or all pins of a server. Return them."""
        rows = self._execute(
            f"DELETE FROM tool_pins WHERE server = ? AND (tool = ? OR ? = '') RETURNING {_COLUMNS}",
            (server, tool, tool),
        )
        return tuple(sorted((ToolPin(*row) for row in rows), key=lambda pin: pin.tool))


def _values(pin: ToolPin) -> tuple[object, ...]:
    return pin.server, pin.tool, pin.identity, pin.digest, pin.definition, pin.at
