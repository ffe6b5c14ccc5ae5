"""The limits that hold for every turn, and the options of a single one.

Tested in tests/unit/agent/test_turn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from everthread.agent.events import Approve, Listen, nobody_approves
from everthread.agent.model_call import ModelChoice


class TurnLimits(Struct, frozen=True):
    iterations: int = 50
    """Limit on the model calls of a turn."""
    turn_s: float = 600.0
    output_tokens: int = 8192
    """Output limit of one model call."""
    recall_s: float = 2.0
    """0 disables recall."""
    recall_tokens: int = 1500
    section: str = "limits"
    """The configuration section that sets these limits; error messages name it."""


class TurnOptions(Struct, frozen=True):
    choices: Sequence[ModelChoice]
    """The model to call, followed by its fallbacks."""
    listen: Listen = lambda event: None
    approve: Approve = nobody_approves
    outbox: bool = False
    """Store the reply in the outbox, for a platform to send."""
    is_guest: Callable[[str], bool] = lambda owner: False
    """Return true for an owner who must not see details of the model configuration in error messages."""
    lasting: bool = True
    """The process outlives the turn, so background work may be started after the commit."""
    tools: frozenset[str] | None = None
    """The names of the only tools the turn may use; `None` allows all."""
    spend: float | None = None
    """The spending limit of this turn in US dollars; `None` sets no limit besides the configured ones."""
