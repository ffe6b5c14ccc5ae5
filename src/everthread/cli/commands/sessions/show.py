"""`everthread sessions show`: print the transcript of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, iso_time, render, strip_control_chars
from everthread.cli.session_output import session_as_json, session_name, session_state
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.text_format import local_time, one_line, pluralize, shorten

if TYPE_CHECKING:
    from everthread.domain.events import View
    from everthread.domain.model import Message, Session, Turn
    from everthread.store.unit_of_work import UnitOfWork

_ARGUMENTS_CHARS = 60
_RESULT_CHARS = 60


@click.command("show")
@click.argument("session", metavar="ID|TITLE", shell_complete=complete_sessions)
@click.option("--full", is_flag=True, help="Show full tool calls, tool results and the model's reasoning.")
@common_options
def show_sessions(cli: CliContext, session: str, full: bool, as_json: bool) -> None:
    """Show the messages of a session, with one line for each tool call.

    Undone turns are omitted. Inherited turns and messages set aside without an answer are marked.

    \b
    Examples:
      everthread sessions show 01JZ8Q4T
      everthread sessions show "Trip to Lisbon" --full | less
      everthread sessions show "Trip to Lisbon" --json
    """
    show_session(cli, session, full=full, as_json=as_json)


def show_session(cli: CliContext, text: str, *, full: bool = False, as_json: bool = False) -> None:
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    def read(uow: UnitOfWork) -> tuple[Session, View]:
        session = find_session_of_any_owner(uow, text)
        return session, uow.turns.view_with_set_aside(session)

    session, view = cli.read_existing(lambda runtime: runtime.store.read(read), text)
    render(Result(lambda: _as_json(session, view), lambda: transcript(session, view, full=full)), as_json)


def transcript(session: Session, view: View, *, full: bool = False) -> Iterator[str]:
    """Yield the lines of a transcript, without control characters."""
    yield session_name(session)
    aside = len(_set_aside(view))
    turns = pluralize(len(view.turns) - aside, "turn")
    turns += f" and {pluralize(aside, 'message')} set aside" if aside else ""
    yield (
        f"{session_state(session)}, {turns}, opened {local_time(session.opened_at)}, "
        f"last active {local_time(session.active_at)}, {one_line(session.owner)} at {session.key}"
    )
    if view.summary is not None:
        yield ""
        yield "Summary of earlier turns:"
        yield from _indent(view.summary)
    for turn in view.turns:
        yield ""
        yield from _turn_lines(turn, full)


def _turn_lines(turn: Turn, full: bool) -> Iterator[str]:
    from everthread.domain.model import Role

    remarks = ["inherited"] * turn.inherited + [turn.status.label] * bool(turn.status.label)
    yield f"[{turn.number}] {local_time(turn.at)}" + (f" ({', '.join(remarks)})" if remarks else "")
    # Some models give every call the same id: match results by their order.
    results: dict[str, list[str]] = {}
    for message in turn.messages:
        if message.role is Role.TOOL and message.tool_call_id:
            results.setdefault(message.tool_call_id, []).append(message.content)
    for message in turn.messages:
        if full and message.reasoning:
            yield "thought:"
            yield from _indent(message.reasoning)
        if message.role is Role.TOOL and message.tool_call_id:
            continue
        if message.content:
            yield f"{message.role.value}:"
            yield from _indent(message.content)
        yield from _tool_lines(message, results, full)


def _tool_lines(message: Message, results: dict[str, list[str]], full: bool) -> Iterator[str]:
    for call in message.tool_calls:
        answers = results.get(call.id)
        result = answers.pop(0) if answers else None
        if not full:
            answer = "no result" if result is None else shorten(result, _RESULT_CHARS) or "empty"
            yield f"tool {one_line(call.name)} {shorten(call.arguments, _ARGUMENTS_CHARS)} -> {answer}"
            continue
        yield f"tool {one_line(call.name)} {one_line(call.arguments)}"
        yield from _indent("(no result)" if result is None else result)


def _indent(text: str) -> Sequence[str]:
    return ["  " + line for line in strip_control_chars(text).splitlines()] or ["  "]


def _set_aside(view: View) -> list[Turn]:
    from everthread.domain.model import TurnStatus

    return [turn for turn in view.turns if turn.status is TurnStatus.SET_ASIDE]


def _as_json(session: Session, view: View) -> dict[str, Any]:
    aside = len(_set_aside(view))
    return session_as_json(session, len(view.turns) - aside) | {
        "summary": view.summary,
        "set_aside": aside,
        "transcript": [
            {
                "number": turn.number,
                "id": turn.turn_id,
                "at": iso_time(turn.at),
                "status": turn.status.value,
                "inherited": turn.inherited,
                "messages": [_message_as_json(message) for message in turn.messages],
            }
            for turn in view.turns
        ],
    }


def _message_as_json(message: Message) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "role": message.role.value,
        "content": message.content,
        "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }
    # Omit empty fields.
    return {name: value for name, value in whole.items() if value or name == "content"}
