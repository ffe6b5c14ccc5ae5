"""`everthread -p`: one question, one answer, for scripts and for people in a hurry."""

from __future__ import annotations

import asyncio
import signal
import sys

from msgspec.structs import replace

from everthread.agent.events import TurnBegan, TurnEnded, TurnEvent
from everthread.agent.turn import TurnOptions
from everthread.cli import output as show
from everthread.cli.chat.plain_output import PlainOutput, TurnPrinter
from everthread.cli.chat.session import ChatOptions, answer_when_free, entered, left, made_ready
from everthread.cli.context import CliRuntime
from everthread.cli.exit_codes import INTERRUPTED, REFUSED, code_of
from everthread.cli.stdin import SPOILED, Lines, Typed
from everthread.domain.errors import BadInput, Busy
from everthread.domain.model import Inbound, SessionRef, ToolCall
from everthread.domain.text_format import call_in_words

STDIN = "-"
TITLE_S_MAX = 2.0
"""The answer is there; so long may it take to find a title for its conversation."""


async def ask_once(runtime: CliRuntime, wish: ChatOptions, prompt: str, *, as_json: bool) -> int:
    """Have the prompt answered; the exit code. Only the answer, or the JSON object, goes to stdout."""
    output = PlainOutput()
    text = await _whole(prompt, output)
    for problem in await made_ready(runtime, output.show_notice if wish.verbose else _nothing):
        output.show_error(problem)
    choices = runtime.choices(wish.model)
    key = await entered(runtime, wish)
    settings = runtime.settings
    await runtime.lifecycle.accept(Inbound(key, settings.owner, text))
    stop = _Stop(runtime)
    # As JSON, and for a program, the answer is told once it is stored.
    output.streams = output.streams and not as_json
    show_turn = TurnPrinter(output, verbose=wish.verbose)

    def hear(event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            stop.began(event.ref)
        if not (as_json and isinstance(event, TurnEnded)):
            show_turn(event)

    manner = TurnOptions(choices, hear, lasting=False)

    async def approve(call: ToolCall, ref: SessionRef) -> bool:
        output.show_notice(f"Not allowed, as there is nobody to ask: {call_in_words(call.name, call.arguments)}")
        return False

    with stop:
        try:
            ended = await answer_when_free(
                runtime, key, replace(manner, approve=approve), output.show_notice, stop.wanted
            )
        except Busy as error:
            await left(runtime, key)
            raise Busy(f"{error}; what you asked is set aside there") from error
    if ended is None:
        raise Busy("another process has taken this turn over; `everthread sessions list` shows where it is")
    if as_json:
        output.show_text(show.as_json(_as_json(ended)))
    if ended.problem:
        output.show_error("interrupted" if stop.wanted() else ended.problem)
    else:
        await runtime.agent.settle_titles(TITLE_S_MAX)
    await runtime.stop(close_memory=True)
    return _code(ended, stopped=stop.wanted(), gone=output.closed)


async def _whole(prompt: str, output: PlainOutput) -> str:
    """The prompt, and behind it what is piped in."""
    given = await Lines().rest() if prompt == STDIN or not _is_terminal() else Typed("")
    piped = given.text.strip("\r\n")
    text = piped if prompt == STDIN else "\n\n".join(part for part in (prompt, piped) if part.strip())
    if not text.strip():
        raise BadInput("there is no prompt; give one with -p, or on stdin")
    if given.spoiled:
        output.show_notice(SPOILED)
    return text


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _nothing(line: str) -> None:
    pass


def _code(ended: TurnEnded, *, stopped: bool, gone: bool) -> int:
    if stopped:
        return INTERRUPTED
    if not ended.problem:
        return REFUSED if gone else 0
    return code_of(ended.error) if ended.error is not None else REFUSED


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


class _Stop:
    """Ctrl-C stops the turn, so that it is stored with what there is of it."""

    def __init__(self, runtime: CliRuntime) -> None:
        self._runtime = runtime
        self._running: set[str] = set()
        self._wanted = False

    def wanted(self) -> bool:
        return self._wanted

    def began(self, ref: SessionRef) -> None:
        self._running.add(ref.session_id)
        if self._wanted:
            asyncio.get_running_loop().call_soon(self._stop)

    def _stop(self) -> None:
        self._wanted = True
        for session_id in self._running:
            self._runtime.agent.stop(session_id)

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
