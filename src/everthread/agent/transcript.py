"""Convert stored turns to request messages, and rebuild an interrupted turn. Pure functions."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from msgspec.structs import replace

from everthread.domain.model import Message, Role, Thought, ToolCall, ToolRow, ToolState, Turn, TurnStatus

INTERRUPTED = "[interrupted]"
OUTCOME_UNKNOWN = (
    "[outcome unknown: the program was stopped while this tool ran. It may or may not have taken effect; "
    "check before you do it again]"
)
STOPPED = "[stopped by the user; it may or may not have taken effect]"


def to_request(turn: Turn) -> tuple[Message, ...]:
    """Convert a stored turn for a request: a result for every call, interruptions marked, an answer at the end."""
    messages = add_missing_results(_drop_orphaned_results(turn.messages), STOPPED)
    if turn.status is not TurnStatus.INTERRUPTED:
        return messages
    last = messages[-1] if messages else None
    if last is not None and last.role is Role.ASSISTANT and not last.tool_calls:
        return (*messages[:-1], replace(last, content=f"{last.content}\n{INTERRUPTED}".strip()))
    return (*messages, Message(Role.ASSISTANT, INTERRUPTED))


def _drop_orphaned_results(messages: Collection[Message]) -> Collection[Message]:
    """Drop tool results without a call, as forgetting a turn may leave them."""
    calls = {call.id for m in messages for call in m.tool_calls}
    if all(m.tool_call_id in calls for m in messages if m.role is Role.TOOL):
        return messages
    return [m for m in messages if m.role is not Role.TOOL or m.tool_call_id in calls]


def add_missing_results(messages: Collection[Message], missing: str) -> tuple[Message, ...]:
    """Add the result `missing` to every call that has none: endpoints reject a call without a result."""
    done = {m.tool_call_id for m in messages if m.role is Role.TOOL}
    if all(call.id in done for m in messages for call in m.tool_calls):
        return tuple(messages)
    out: list[Message] = []
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role is not Role.TOOL and waiting:
            out += [result(call, missing) for call in waiting]
            waiting = []
        out.append(message)
        waiting += [call for call in message.tool_calls if call.id not in done]
    return (*out, *(result(call, missing) for call in waiting))


def result(call: ToolCall, text: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id=call.id, name=call.name)


def rebuild_tool_messages(rows: Collection[ToolRow]) -> tuple[Message, ...]:
    """Rebuild the tool messages of a turn after a crash: finished calls keep their results, others are unknown.

    Calls that share a thought stay in one message.
    """
    out: list[Message] = []
    for thought, together in groupby(enumerate(rows), key=lambda row: row[1].thought or row[0]):
        calls: list[ToolCall] = []
        results: list[Message] = []
        for _, row in together:
            call = ToolCall(row.call_id, row.name, row.arguments)
            text = row.result if row.state is ToolState.DONE and row.result is not None else OUTCOME_UNKNOWN
            calls.append(call)
            results.append(result(call, text))
        known = thought if isinstance(thought, Thought) else None
        out += [Message(Role.ASSISTANT, "", tuple(calls), thought=known), *results]
    return tuple(out)


def drop_other_thoughts(model: str, messages: Collection[Message]) -> tuple[Message, ...]:
    """Remove the thoughts of other models: each is signed by its model, and other models reject it."""
    return tuple(m if m.thought is None or m.thought.model == model else replace(m, thought=None) for m in messages)


def drop_thoughts(messages: Collection[Message]) -> tuple[Message, ...]:
    """Remove all thoughts from a finished turn: models need them back only while the turn runs."""
    return tuple(m if m.thought is None else replace(m, thought=None) for m in messages)


def adopt_answer(message: Message, before: Collection[Message], model: str) -> Message:
    """Prepare an answer for the running turn: make its call ids unique and attribute its thought to `model`."""
    message = make_call_ids_unique(message, [call.id for earlier in before for call in earlier.tool_calls])
    return message if message.thought is None else replace(message, thought=replace(message.thought, model=model))


def make_call_ids_unique(message: Message, taken: Collection[str]) -> Message:
    """Give each call an id that is unique within the turn.

    Clients assign unique ids already, because their thoughts may refer to them.
    """
    used = set(taken)
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        own, number = call.id, 2
        while not own or own in used:
            own, number = f"{call.id or 'call'}_{number}", number + 1
        used.add(own)
        calls.append(replace(call, id=own))
    return replace(message, tool_calls=tuple(calls))
