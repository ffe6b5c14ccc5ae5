"""Validation of tool calls."""

import pytest

from everthread.adapters.models.tool_call_validation import is_object, runnable_calls, valid_name
from everthread.domain.model import Message, Role, ToolCall
from everthread.ports.model import Finish


@pytest.mark.parametrize(("name", "valid"), [("look up!", "look_up_"), ("", "_"), ("a" * 70, "a" * 64)])
def test_a_name_is_made_valid_for_every_endpoint(name: str, valid: str) -> None:
    assert valid_name(name) == valid


@pytest.mark.parametrize(
    ("arguments", "complete"), [('{"a": 1}', True), ('{"a": ', False), ("[1]", False), ("", False)]
)
def test_arguments_must_be_a_complete_object(arguments: str, complete: bool) -> None:
    assert is_object(arguments) is complete


def test_ids_are_unique_in_the_turn() -> None:
    tail = [Message(Role.ASSISTANT, "", tool_calls=(ToolCall("x", "a", "{}"),))]
    calls, finish = runnable_calls([ToolCall("x", "b", "{}"), ToolCall("", "c", "{}")], Finish.STOP, tail)
    assert len({"x", *(call.id for call in calls)}) == 3
    assert finish is Finish.TOOLS


def test_a_call_that_was_cut_off_is_dropped() -> None:
    calls, finish = runnable_calls([ToolCall("1", "a", '{"x": ')], Finish.LENGTH, ())
    assert (calls, finish) == ((), Finish.LENGTH)
    assert runnable_calls([ToolCall("1", "a", "{}")], Finish.REFUSED, ()) == ((), Finish.REFUSED)
