"""`Lifecycle`: every operation that writes a session, a turn or a log entry.

Tested in the files of the operations, for example `tests/unit/lifecycle/test_boundaries.py`.
"""

from __future__ import annotations

from everthread.lifecycle.archive import ArchiveOperations
from everthread.lifecycle.boundaries import BoundaryOperations
from everthread.lifecycle.expiry import ExpiryOperations
from everthread.lifecycle.inbox import InboxOperations
from everthread.lifecycle.notes import NoteOperations
from everthread.lifecycle.recovery import RecoveryOperations
from everthread.lifecycle.sessions import SessionOperations
from everthread.lifecycle.spend import SpendOperations
from everthread.lifecycle.turns import TurnOperations


class Lifecycle(
    BoundaryOperations,
    ExpiryOperations,
    InboxOperations,
    TurnOperations,
    RecoveryOperations,
    SessionOperations,
    NoteOperations,
    SpendOperations,
    ArchiveOperations,
):
    """All operations, by subject. Each method is one transaction; every process has one instance for all keys."""
