"""Tools that a server offers, and the error for a server that is unavailable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class ServerUnavailable(Exception):
    """The server can't be used; the message is the reason, on one line."""


class ListedTool(Struct, frozen=True):
    """A tool as its server lists it, within our limits."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    idempotent: bool


class ToolList(Struct, frozen=True):
    tools: tuple[ListedTool, ...]
    """Sorted by name."""
    left_out: tuple[str, ...]
    """Reasons why some tools are left out."""
