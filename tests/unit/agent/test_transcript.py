"""Stored turns as messages of a request, and interrupted turns as they are continued."""

from __future__ import annotations

from everthread.agent.transcript import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    STOPPED,
    add_missing_results,
    drop_other_thoughts,
    drop_thoughts,
    make_call_ids_unique,
    rebuild_tool_messages,
    to_request,
)
from everthread.domain.model import Message, Role, Thought, ToolCall, ToolRow, ToolState, Turn, TurnStatus

HELLO = Message(Role.USER, "hello")
CALL = ToolCall("c1", "look", "{}")
ASKS = Message(Role.ASSISTANT, "", (CALL,))
SEES = Message(Role.TOOL, "a tree", tool_call_id="c1", name="look")


def turn(*messages: Message, status: TurnStatus = TurnStatus.DONE) -> Turn:
    return Turn("s", 1, "t", status, 0.0, messages)


def test_a_finished_turn_is_sent_as_stored() -> None:
    messages = (HELLO, ASKS, SEES, Message(Role.ASSISTANT, "a tree"))
    assert to_request(turn(*messages)) == messages


def test_an_interrupted_answer_is_marked() -> None:
    sent = to_request(turn(HELLO, Message(Role.ASSISTANT, "I was abo"), status=TurnStatus.INTERRUPTED))
    assert sent[-1] == Message(Role.ASSISTANT, f"I was abo\n{INTERRUPTED}")


def test_a_message_without_an_answer_gets_a_marked_one() -> None:
    sent = to_request(turn(HELLO, status=TurnStatus.INTERRUPTED))
    assert sent == (HELLO, Message(Role.ASSISTANT, INTERRUPTED))


def test_a_turn_interrupted_after_a_tool_ends_with_an_answer() -> None:
    sent = to_request(turn(HELLO, ASKS, SEES, status=TurnStatus.INTERRUPTED))
    assert sent == (HELLO, ASKS, SEES, Message(Role.ASSISTANT, INTERRUPTED))


def test_every_call_has_a_result_before_the_next_message() -> None:
    two = Message(Role.ASSISTANT, "", (CALL, ToolCall("c2", "look", "{}")))
    more = Message(Role.USER, "never mind")
    assert add_missing_results([HELLO, two, SEES, more], STOPPED) == (
        HELLO,
        two,
        SEES,
        Message(Role.TOOL, STOPPED, tool_call_id="c2", name="look"),
        more,
    )


def test_a_forgotten_turn_sends_no_result_without_its_call() -> None:
    forgotten = [Message(role, "[forgotten]") for role in (Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT)]
    assert [message.role for message in to_request(turn(*forgotten))] == [Role.USER, Role.ASSISTANT, Role.ASSISTANT]


def test_stored_results_are_reused_and_started_tools_have_an_unknown_outcome() -> None:
    rows = [
        ToolRow("t", "c1", "look", "{}", ToolState.DONE, "a tree"),
        ToolRow("t", "c2", "fell", '{"what":"tree"}', ToolState.STARTED),
    ]
    fell = ToolCall("c2", "fell", '{"what":"tree"}')
    assert rebuild_tool_messages(rows) == (
        ASKS,
        SEES,
        Message(Role.ASSISTANT, "", (fell,)),
        Message(Role.TOOL, OUTCOME_UNKNOWN, tool_call_id="c2", name="fell"),
    )


def test_calls_of_one_answer_are_grouped_again() -> None:
    one, other = Thought("hm", "a/one"), Thought("ah", "a/one")
    rows = [
        ToolRow("t", name, "look", "{}", ToolState.DONE, name, thought)
        for name, thought in (("c1", one), ("c2", one), ("c3", other), ("c4", None), ("c5", None))
    ]
    asked = [message for message in rebuild_tool_messages(rows) if message.tool_calls]
    assert [[call.id for call in message.tool_calls] for message in asked] == [["c1", "c2"], ["c3"], ["c4"], ["c5"]]
    assert [message.thought for message in asked] == [one, other, None, None]
    assert [message.thought for message in drop_other_thoughts("a/one", asked)] == [one, other, None, None]
    assert all(message.thought is None for message in (*drop_other_thoughts("b/two", asked), *drop_thoughts(asked)))


def test_calls_with_the_same_id_get_unique_ids() -> None:
    message = Message(Role.ASSISTANT, "", (CALL, CALL, ToolCall("", "look", "{}")))
    ids = [call.id for call in make_call_ids_unique(message, ["c1"]).tool_calls]
    assert len({*ids, "c1"}) == 4
    assert all(ids)


def test_unique_ids_are_kept() -> None:
    assert make_call_ids_unique(ASKS, ["c0"]) == ASKS
