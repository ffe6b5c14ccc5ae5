"""What a server has to offer, or why it has nothing to offer now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Away(Exception):
    """The server can't be reached; says why, on one line."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as its server lists it, within our bounds."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    idempotent: bool


@dataclass(frozen=True, slots=True)
class Listing:
    tools: tuple[Listed, ...]
    """By name."""
    left_out: tuple[str, ...]
    """Why some are not among them."""
