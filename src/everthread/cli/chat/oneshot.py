"""`everthread -p`: answer one prompt and exit."""

from __future__ import annotations

import sys
from signal import SIGINT

from msgspec.structs import asdict

from everthread.agent.events import TurnEnded, TurnEvent
from everthread.agent.turn_options import TurnOptions
from everthread.cli.chat.approvals import ApprovalPrompt
from everthread.cli.chat.plain_view import PlainView
from everthread.cli.chat.session import (
    ChatOptions,
    TurnStopper,
    answer_when_free,
    enter_session,
    leave_session,
    prepare_runtime,
)
from everthread.cli.context import CliRuntime
from everthread.cli.exit_codes import INTERRUPTED, REFUSED, exit_code
from everthread.cli.output import to_json
from everthread.cli.signals import handle_signals
from everthread.cli.stdin import INVALID_UTF8, InputText, LineReader
from everthread.domain.errors import BadInput, Busy
from everthread.domain.model import Inbound

STDIN = "-"
TITLE_S_MAX = 2.0
"""Wait at most this long for a title after the answer."""


async def ask_once(runtime: CliRuntime, options: ChatOptions, prompt: str, *, as_json: bool) -> int:
    """Answer the prompt and return the exit code. Only the answer, or the JSON object, goes to stdout."""
    view = PlainView(interactive=False, verbose=options.verbose)
    text = await _read_prompt(prompt, view)
    for problem in await prepare_runtime(runtime, lambda line: view.show_notice(line) if options.verbose else None):
        view.show_error(problem)
    choices = runtime.choices(options.model)
    key = await enter_session(runtime, options)
    await runtime.lifecycle.accept(Inbound(key, runtime.settings.owner, text))
    stopper = TurnStopper(runtime)
    # JSON output, and a pipe, get the answer once it is stored.
    view.streams = view.streams and not as_json

    def handle(event: TurnEvent) -> None:
        stopper.handle(event)
        if not (as_json and isinstance(event, TurnEnded)):
            view.show_event(event)

    turn = TurnOptions(choices, handle, ApprovalPrompt(view).approve, lasting=False)
    # Ctrl-C stops the turn, so that the partial answer is stored.
    with handle_signals({SIGINT: stopper.stop}):
        try:
            ended = await answer_when_free(runtime, key, turn, view.show_notice, lambda: stopper.requested)
        except Busy as error:
            await leave_session(runtime, key)
            raise Busy(f"{error}; your message is set aside there") from error
    if ended is None:
        raise Busy("another process has taken this turn over; `everthread sessions list` shows where it is")
    if as_json:
        view.show_text(to_json(_as_json(ended)))
    if ended.problem:
        view.show_error("interrupted" if stopper.requested else ended.problem)
    else:
        await runtime.agent.settle_titles(TITLE_S_MAX)
    await runtime.stop(close_memory=True)
    return _exit_code(ended, stopped=stopper.requested, gone=view.closed)


async def _read_prompt(prompt: str, view: PlainView) -> str:
    """Join the prompt and the piped input."""
    reads_stdin = prompt == STDIN or sys.stdin is None or not sys.stdin.isatty()
    stdin = await LineReader().rest() if reads_stdin else InputText("")
    piped = stdin.text.strip("\r\n")
    text = piped if prompt == STDIN else "\n\n".join(part for part in (prompt, piped) if part.strip())
    if not text.strip():
        raise BadInput("there is no prompt; give one with -p, or on stdin")
    if stdin.spoiled:
        view.show_notice(INVALID_UTF8)
    return text


def _exit_code(ended: TurnEnded, *, stopped: bool, gone: bool) -> int:
    if stopped:
        return INTERRUPTED
    if not ended.problem:
        return REFUSED if gone else 0
    return exit_code(ended.error) if ended.error is not None else REFUSED


def _as_json(ended: TurnEnded) -> dict[str, object]:
    return {
        "session": ended.committed.ref.session_id,
        "turn": ended.committed.number,
        "text": ended.text,
        "status": ended.committed.status.value,
        "problem": ended.problem or None,
        "model": ended.model or None,
        "usage": asdict(ended.usage),
    }
