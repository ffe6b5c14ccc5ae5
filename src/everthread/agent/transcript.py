"""Pure rules: stored turns as the model sees them, and a turn that was cut short as it is gone on with."""

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


def as_sent(turn: Turn) -> tuple[Message, ...]:
    """A stored turn as a request has it: every call answered, an interruption marked, an answer at the end."""
    messages = answered(_called(turn.messages), STOPPED)
    if turn.status is not TurnStatus.INTERRUPTED:
        return messages
    last = messages[-1] if messages else None
    if last is not None and last.role is Role.ASSISTANT and not last.tool_calls:
        return (*messages[:-1], replace(last, content=f"{last.content}\n{INTERRUPTED}".strip()))
    return (*messages, Message(Role.ASSISTANT, INTERRUPTED))


def _called(messages: Collection[Message]) -> Collection[Message]:
    """The messages without results that nobody called for: of a forgotten turn no more is left than that it was."""
    calls = {call.id for m in messages for call in m.tool_calls}
    if all(m.tool_call_id in calls for m in messages if m.role is Role.TOOL):
        return messages
    return [m for m in messages if m.role is not Role.TOOL or m.tool_call_id in calls]


def answered(messages: Collection[Message], missing: str) -> tuple[Message, ...]:
    """The messages with a result for every call: a call without one is refused by every endpoint."""
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


def recovered(rows: Collection[ToolRow]) -> tuple[Message, ...]:
    """What was done before a crash: results are used again, and what was only begun is said to be unknown.

    Calls that were thought of together stay together, as the thought is one.
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


def shown_to(model: str, messages: Collection[Message]) -> tuple[Message, ...]:
    """The messages without what other models thought: it is signed by them, and refused by any other."""
    return tuple(m if m.thought is None or m.thought.model == model else replace(m, thought=None) for m in messages)


def as_stored(messages: Collection[Message]) -> tuple[Message, ...]:
    """The messages of a turn that is over: whoever wants its thoughts back wants them before its end."""
    return tuple(m if m.thought is None else replace(m, thought=None) for m in messages)


def taken_in(message: Message, before: Collection[Message], model: str) -> Message:
    """An answer as it is kept while there is more to come: no call has another's id, its thought is that model's."""
    message = with_own_ids(message, [call.id for earlier in before for call in earlier.tool_calls])
    return message if message.thought is None else replace(message, thought=replace(message.thought, model=model))


def with_own_ids(message: Message, taken: Collection[str]) -> Message:
    """The message with an id for each call that no other call of the turn has.

    Clients give such ids already, so that their thoughts may go by them.
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
