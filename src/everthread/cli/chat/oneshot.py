"""`everthread -p`: answer one prompt and exit."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

from everthread.agent.events import TurnEnded, TurnEvent
from everthread.agent.turn_options import TurnOptions
from everthread.cli.chat.plain_output import PlainOutput, TurnPrinter
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
from everthread.cli.stdin import INVALID_UTF8, InputText, LineReader
from everthread.domain.errors import BadInput, Busy
from everthread.domain.model import Inbound, SessionRef, ToolCall
from everthread.domain.text_format import call_in_words

STDIN = "-"
TITLE_S_MAX = 2.0
"""Wait at most this long for a title after the answer."""


async def ask_once(runtime: CliRuntime, wish: ChatOptions, prompt: str, *, as_json: bool) -> int:
    """Answer the prompt and return the exit code. Only the answer, or the JSON object, goes to stdout."""
    output = PlainOutput()
    text = await _read_prompt(prompt, output)
    for problem in await prepare_runtime(runtime, output.show_notice if wish.verbose else _ignore):
        output.show_error(problem)
    choices = runtime.choices(wish.model)
    key = await enter_session(runtime, wish)
    settings = runtime.settings
    await runtime.lifecycle.accept(Inbound(key, settings.owner, text))
    stopper = TurnStopper(runtime)
    # JSON output, and a pipe, get the answer once it is stored.
    output.streams = output.streams and not as_json
    show_turn = TurnPrinter(output, verbose=wish.verbose)

    def hear(event: TurnEvent) -> None:
        stopper.hear(event)
        if not (as_json and isinstance(event, TurnEnded)):
            show_turn(event)

    async def approve(call: ToolCall, ref: SessionRef) -> bool:
        output.show_notice(f"Not allowed, as there is nobody to ask: {call_in_words(call.name, call.arguments)}")
        return False

    options = TurnOptions(choices, hear, approve, lasting=False)
    with _interrupts(stopper):
        try:
            ended = await answer_when_free(runtime, key, options, output.show_notice, lambda: stopper.requested)
        except Busy as error:
            await leave_session(runtime, key)
            raise Busy(f"{error}; what you asked is set aside there") from error
    if ended is None:
        raise Busy("another process has taken this turn over; `everthread sessions list` shows where it is")
    if as_json:
        output.show_text(to_json(_as_json(ended)))
    if ended.problem:
        output.show_error("interrupted" if stopper.requested else ended.problem)
    else:
        await runtime.agent.settle_titles(TITLE_S_MAX)
    await runtime.stop(close_memory=True)
    return _exit_code(ended, stopped=stopper.requested, gone=output.closed)


async def _read_prompt(prompt: str, output: PlainOutput) -> str:
    """Join the prompt and the piped input."""
    stdin = await LineReader().rest() if prompt == STDIN or not _is_terminal() else InputText("")
    piped = stdin.text.strip("\r\n")
    text = piped if prompt == STDIN else "\n\n".join(part for part in (prompt, piped) if part.strip())
    if not text.strip():
        raise BadInput("there is no prompt; give one with -p, or on stdin")
    if stdin.spoiled:
        output.show_notice(INVALID_UTF8)
    return text


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _ignore(line: str) -> None:
    pass


def _exit_code(ended: TurnEnded, *, stopped: bool, gone: bool) -> int:
    if stopped:
        return INTERRUPTED
    if not ended.problem:
        return REFUSED if gone else 0
    return exit_code(ended.error) if ended.error is not None else REFUSED


def _as_json(ended: TurnEnded) -> dict[str, object]:
    usage = ended.usage
    return {
        "session": ended.committed.ref.session_id,
        "turn": ended.committed.number,
        "text": ended.text,
        "status": ended.committed.status.value,
        "problem": ended.problem or None,
        "model": ended.model or None,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost": usage.cost,
        },
    }


@contextmanager
def _interrupts(stopper: TurnStopper) -> Generator[None]:
    """Let Ctrl-C stop the turn, so that the partial answer is stored."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stopper.stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
