"""`everthread sessions show`: a transcript as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.output import shown
from everthread.cli.session_output import named, nothing_there, session_as_json, state

if TYPE_CHECKING:
    from everthread.domain.events import View
    from everthread.domain.model import Message, Session, Turn
    from everthread.store.unit_of_work import UnitOfWork

_ARGUMENTS_CHARS = 60
_RESULT_CHARS = 60


@click.command("show")
@click.argument("session", metavar="ID|TITLE", shell_complete=completing.sessions)
@click.option("--full", is_flag=True, help="Show what tools were told and answered, and the model's reasoning.")
@json_option
@home_option
@pass_invocation
def show_sessions(invocation: CliContext, session: str, full: bool, as_json: bool) -> None:
    """Show what was said in a session: who, when, and what the tools did, a line each.

    What was undone is left out; what came from the session it grew out of is marked, and so is a message that was set
    aside without an answer.

    \b
    Examples:
      everthread sessions show 01JZ8Q4T
      everthread sessions show "Trip to Lisbon" --full | less
      everthread sessions show "Trip to Lisbon" --json
    """
    show_session(invocation, session, full=full, as_json=as_json)


def show_session(invocation: CliContext, text: str, *, full: bool = False, as_json: bool = False) -> None:
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    def look(uow: UnitOfWork) -> tuple[Session, View]:
        session = find_session_of_any_owner(uow, text)
        return session, uow.turns.view_for_people(session)

    found = invocation.look(lambda runtime: runtime.store.read(look), nothing=None)
    if found is None:
        raise nothing_there(text, invocation)
    session, view = found
    if as_json:
        show.print_json(_as_json(session, view))
    else:
        for line in transcript(session, view, full=full):
            click.echo(line)


def transcript(session: Session, view: View, *, full: bool = False) -> Iterator[str]:
    """The lines of a session's transcript. Nothing in them can move a cursor."""
    yield named(session)
    aside = len(_set_aside(view))
    turns = show.counted(len(view.turns) - aside, "turn")
    turns += f" and {show.counted(aside, 'message')} set aside" if aside else ""
    yield (
        f"{state(session)}, {turns}, opened {show.local_time(session.opened_at)}, "
        f"last active {show.local_time(session.active_at)}, {show.one_line(session.owner)} at {session.key}"
    )
    if view.summary is not None:
        yield ""
        yield "What came before, in short:"
        yield from _indented(view.summary)
    for turn in view.turns:
        yield ""
        yield from _turn_lines(turn, full)


def _turn_lines(turn: Turn, full: bool) -> Iterator[str]:
    from everthread.domain.model import Role

    remarks = ["inherited"] * turn.inherited + [turn.status.in_words] * bool(turn.status.in_words)
    yield f"[{turn.number}] {show.local_time(turn.at)}" + (f" ({', '.join(remarks)})" if remarks else "")
    # Some models give every call the same id: answers are taken in their order.
    results: dict[str, list[str]] = {}
    for message in turn.messages:
        if message.role is Role.TOOL and message.tool_call_id:
            results.setdefault(message.tool_call_id, []).append(message.content)
    for message in turn.messages:
        if full and message.reasoning:
            yield "thought:"
            yield from _indented(message.reasoning)
        if message.role is Role.TOOL and message.tool_call_id:
            continue
        if message.content:
            yield f"{message.role.value}:"
            yield from _indented(message.content)
        yield from _tool_lines(message, results, full)


def _tool_lines(message: Message, results: dict[str, list[str]], full: bool) -> Iterator[str]:
    for call in message.tool_calls:
        answers = results.get(call.id)
        result = answers.pop(0) if answers else None
        if not full:
            answer = "no answer" if result is None else show.shortened(result, _RESULT_CHARS) or "nothing"
            yield f"tool {show.one_line(call.name)} {show.shortened(call.arguments, _ARGUMENTS_CHARS)} -> {answer}"
            continue
        yield f"tool {show.one_line(call.name)} {show.one_line(call.arguments)}"
        yield from _indented("(no answer)" if result is None else result)


def _indented(text: str) -> Sequence[str]:
    return ["  " + line for line in shown(text).splitlines()] or ["  "]


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
                "at": show.iso_time(turn.at),
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
    # What a message does not have is left out.
    return {name: value for name, value in whole.items() if value or name == "content"}
