"""Passing on what becomes of a message: to what is shown of it, and to whoever waits to hear."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from everthread.agent.events import Steered, TurnBegan, TurnEnded, TurnEvent
from everthread.commands.registry import CommandResult
from everthread.gateway.streaming import LiveReply
from everthread.lifecycle import TurnClaim


class SetAside(Struct, frozen=True):
    """A message will not be answered: its conversation was left before its turn came."""

    session_id: str


class Answered(Struct, frozen=True):
    """A command was carried out, and this is what is said to it."""

    said: CommandResult


Hear = Callable[[TurnEvent | SetAside | Answered], None]
"""Told of what becomes of one message. Must return at once."""


class Listener:
    """Passes on what happens in one turn: to what is shown of it, and to whoever waits for it."""

    def __init__(
        self,
        began: Callable[[TurnClaim], None],
        showing: LiveReply | None,
        hearing: Mapping[int, Hear],
        hold: Callable[[str], None],
    ) -> None:
        """`began` is told which turn it is; `hold` keeps its reply from being sent as long as it is shown."""
        self._began = began
        self._hold = hold
        self.turn_id = ""
        self._showing = showing
        self._hearing = hearing
        self._concerned: list[Hear] = []
        self.ended: TurnEnded | None = None

    def hear(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._began(event.ticket)
                self._also(event.ticket.message.id)
                for row in event.ticket.steered:
                    self._also(row.id)
                if self._showing is not None:
                    self.turn_id = event.ticket.turn_id
                    self._hold(self.turn_id)
                    self._showing.begin(event.ticket)
            case Steered():
                self._also(event.inbox_id)
            case TurnEnded():
                self.ended = event
            case _:
                pass
        if self._showing is not None:
            self._showing.hear(event)
        for hear in self._concerned:
            hear(event)

    def _also(self, inbox_id: int) -> None:
        if (hear := self._hearing.get(inbox_id)) is not None:
            self._concerned.append(hear)
