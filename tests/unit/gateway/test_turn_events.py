"""The relay of turn events: to the subscribers of the turn's messages, and to its live reply."""

from __future__ import annotations

from typing import Any, cast

from everthread.agent.events import Steered, TextWritten, TurnBegan, TurnEnded
from everthread.domain.model import Inbound, InboxRow, InboxState, SessionKey, SessionRef, TurnStatus
from everthread.gateway.streaming import LiveReply
from everthread.gateway.turn_events import TurnEventRelay
from everthread.lifecycle import CommittedTurn, TurnClaim

KEY = SessionKey.parse("agent:main:fake:dm:42")


def row(number: int) -> InboxRow:
    return InboxRow(number, Inbound(KEY, "me", f"message {number}"), 1.0, InboxState.RUNNING)


CLAIM = TurnClaim("t1", SessionRef("s1", 1, KEY, 1, "me"), "p1", 1, row(1), steered=(row(2),))


class RecordingReply:
    def __init__(self) -> None:
        self.events: list[object] = []

    def begin(self, claim: TurnClaim) -> None:
        self.events.append(claim)

    def handle(self, event: object) -> None:
        self.events.append(event)


def relay_for(
    events: dict[int, list[Any]], live_reply: RecordingReply | None = None
) -> tuple[TurnEventRelay, list[Any], list[str]]:
    began: list[Any] = []
    held: list[str] = []
    subscribers = {inbox_id: received.append for inbox_id, received in events.items()}
    return TurnEventRelay(began.append, cast(LiveReply | None, live_reply), subscribers, held.append), began, held


def test_only_subscribers_of_the_turns_messages_get_its_events() -> None:
    events: dict[int, list[Any]] = {1: [], 2: [], 3: []}
    relay, began, held = relay_for(events)
    first, words = TurnBegan(CLAIM, recovered=False), TextWritten("hello")
    relay.handle(first)
    relay.handle(words)
    assert events == {1: [first, words], 2: [first, words], 3: []}
    assert (began, held, relay.turn_id) == ([CLAIM], [], "")


def test_a_steering_message_gets_the_events_from_then_on() -> None:
    events: dict[int, list[Any]] = {1: [], 3: []}
    relay, *_ = relay_for(events)
    relay.handle(TurnBegan(CLAIM, recovered=False))
    steered, words = Steered("message 3", 3), TextWritten("hello")
    relay.handle(steered)
    relay.handle(words)
    assert events[3] == [steered, words]


def test_a_live_reply_is_started_and_holds_the_reply_in_the_outbox() -> None:
    live_reply = RecordingReply()
    relay, _, held = relay_for({}, live_reply)
    first = TurnBegan(CLAIM, recovered=False)
    relay.handle(first)
    assert (held, relay.turn_id) == (["t1"], "t1")
    assert live_reply.events == [CLAIM, first]


def test_the_relay_keeps_the_end_of_the_turn() -> None:
    relay, *_ = relay_for({})
    assert relay.ended is None
    ended = TurnEnded(CommittedTurn(CLAIM.ref, 1, TurnStatus.DONE, None), "hello", "")
    relay.handle(ended)
    assert relay.ended is ended
