"""What a server has to offer, or why it has nothing to offer now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Away(Exception):
    """The server can't be reached; says why, on one line."""


class Listed(Struct, frozen=True):
    """A tool as its server lists it, within our bounds."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    idempotent: bool


class Listing(Struct, frozen=True):
    tools: tuple[Listed, ...]
    """By name."""
    left_out: tuple[str, ...]
    """Why some are not among them."""
