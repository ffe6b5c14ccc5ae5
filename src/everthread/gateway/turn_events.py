"""Relay the events of one turn to its live reply and to the subscribers of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from everthread.agent.events import Steered, TurnBegan, TurnEnded, TurnEvent
from everthread.commands.context import CommandResult
from everthread.gateway.streaming import LiveReply
from everthread.lifecycle import TurnClaim


class MessageSetAside(Struct, frozen=True):
    """The message will not be answered: its session was left before its turn."""

    session_id: str


class CommandAnswered(Struct, frozen=True):
    """The command ran with this result."""

    result: CommandResult


Subscriber = Callable[[TurnEvent | MessageSetAside | CommandAnswered], None]
"""Receives the events of one message. Must not block."""


class TurnEventRelay:
    """Relays the events of one turn."""

    def __init__(
        self,
        began: Callable[[TurnClaim], None],
        live_reply: LiveReply | None,
        subscribers: Mapping[int, Subscriber],
        hold: Callable[[str], None],
    ) -> None:
        """`began` receives the turn's claim. `hold` keeps its reply in the outbox while the live reply is shown.

        `subscribers` are keyed by inbox id.
        """
        self._began = began
        self._hold = hold
        self.turn_id = ""
        self._live_reply = live_reply
        self._subscribers = subscribers
        self._active: list[Subscriber] = []
        self.ended: TurnEnded | None = None

    def handle(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._began(event.claim)
                self._activate(event.claim.message.id)
                for row in event.claim.steered:
                    self._activate(row.id)
                if self._live_reply is not None:
                    self.turn_id = event.claim.turn_id
                    self._hold(self.turn_id)
                    self._live_reply.begin(event.claim)
            case Steered():
                self._activate(event.inbox_id)
            case TurnEnded():
                self.ended = event
            case _:
                pass
        if self._live_reply is not None:
            self._live_reply.handle(event)
        for subscriber in self._active:
            subscriber(event)

    def _activate(self, inbox_id: int) -> None:
        if (subscriber := self._subscribers.get(inbox_id)) is not None:
            self._active.append(subscriber)
