"""The part of a wired-up runtime that the gateway uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from everthread.commands.context import CommandContext, CommandRuntime
from everthread.domain.model import InboxRow, Reply
from everthread.ports.clock import Clock

if TYPE_CHECKING:
    from everthread.gateway.scheduler import Scheduler


class GatewayRuntime(CommandRuntime, Protocol):
    """A runtime with an agent, as `bootstrap` wires it."""

    clock: Clock
    new_id: Callable[[], str]

    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler: ...


BuildContext = Callable[[InboxRow, str], CommandContext]
"""Builds the context of a command in the inbox, for the model that its key has chosen."""
