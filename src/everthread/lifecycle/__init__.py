"""The one door. Every boundary, every committed turn and every log entry is written from this package.

`Lifecycle` is its face: each method is one unit of work, and `units` has them by subject. The modules beside that are
plain functions on a unit of work.
"""

from __future__ import annotations

from everthread.lifecycle.checks import TEXT_CHARS_MAX, TURN_CHARS_MAX
from everthread.lifecycle.crossing import Crossing
from everthread.lifecycle.forget import ForgetFact, ForgetOwner, ForgetSession
from everthread.lifecycle.notes import NoteChange, Rewriting
from everthread.lifecycle.turn import Committed, Ticket
from everthread.lifecycle.units.archive import ArchiveUnits
from everthread.lifecycle.units.boundaries import BoundaryUnits
from everthread.lifecycle.units.notes import NoteUnits
from everthread.lifecycle.units.spend import SpendUnits
from everthread.lifecycle.units.turns import TurnUnits

__all__ = [
    "TEXT_CHARS_MAX",
    "TURN_CHARS_MAX",
    "Committed",
    "Crossing",
    "ForgetFact",
    "ForgetOwner",
    "ForgetSession",
    "Lifecycle",
    "NoteChange",
    "Rewriting",
    "Ticket",
]


class Lifecycle(TurnUnits, BoundaryUnits, NoteUnits, SpendUnits, ArchiveUnits):
    """Serves every key from any process: it keeps nothing about them."""
