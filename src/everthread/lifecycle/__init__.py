"""The one door. Every boundary, every committed turn and every log entry is written from this package.

`Lifecycle` is its face: each method is one unit of work, and `units` has them by subject. The modules beside that are
plain functions on a unit of work.
"""

from __future__ import annotations

from everthread.lifecycle.archive import ArchiveUnits
from everthread.lifecycle.boundaries import BoundaryUnits, Crossing
from everthread.lifecycle.forget import ForgetFact, ForgetOwner, ForgetSession
from everthread.lifecycle.notes import NoteChange, NoteUnits, Rewriting
from everthread.lifecycle.spend import SpendUnits
from everthread.lifecycle.turns import Committed, TurnClaim, TurnUnits
from everthread.lifecycle.validation import TEXT_CHARS_MAX, TURN_CHARS_MAX

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
    "TurnClaim",
]


class Lifecycle(TurnUnits, BoundaryUnits, NoteUnits, SpendUnits, ArchiveUnits):
    """Serves every key from any process: it keeps nothing about them."""
