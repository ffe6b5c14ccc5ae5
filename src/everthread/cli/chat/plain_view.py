"""The chat view on plain streams: answers, results and prompts on stdout, notices and errors on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import click

from everthread.agent.events import Retrying, TextWritten, ToolBegan, ToolEnded, TurnBegan, TurnEnded, TurnEvent
from everthread.cli.event_text import event_notices
from everthread.cli.exit_codes import discard_output
from everthread.cli.output import for_terminal, strip_control_chars
from everthread.cli.stdin import InputText, LineReader
from everthread.config.terminal import detect_display
from everthread.domain.model import TurnStatus
from everthread.domain.text_format import quote_start, shorten

if TYPE_CHECKING:
    from everthread.cli.status_line import Status
    from everthread.commands.recap import Recap

_DETAIL_CHARS_MAX = 100


class PlainView:
    """A `ChatView` for a pipe, or a terminal that can only print lines: no status line, no menus.

    Sets `closed` and stays silent if the reader of stdout has gone.
    """

    rich = False

    def __init__(self, *, interactive: bool, verbose: bool) -> None:
        self.interactive = interactive
        self.closed = sys.stdout is None
        self.streams = sys.stdout is not None and sys.stdout.isatty()
        """True if answers are printed while they are written."""
        self._verbose = verbose
        self._lines = LineReader()
        self._prompts = interactive
        self._styled = detect_display().term != "dumb"
        self._mid_line = False
        self._at_prompt = False
        self._written = False
        """True if a part of the current answer is printed."""
        self.show_answer = self.show_text

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._prompts = False

    async def read_message(self) -> InputText | None:
        typed = await self._lines.message()
        if typed is not None:
            # The user pressed Enter, so the cursor is at the start of a line.
            self._at_prompt = self._mid_line = False
        return typed

    # --- Output ------------------------------------------------------------------------------------------------------

    def show_event(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan() | Retrying():
                self._written = False
            case TextWritten() if self.streams:
                self._write(event.text)
                self._written = True
            case ToolBegan():
                self._written = False
                self.show_notice(f"* {event.call.name} {shorten(event.call.arguments, _DETAIL_CHARS_MAX)}")
            case ToolEnded() if self._verbose:
                self.show_notice(f"  {event.call.name}: {shorten(event.result, _DETAIL_CHARS_MAX)}")
            case TurnEnded():
                self._end_answer(event)
            case _:
                pass
        for line in event_notices(event, verbose=self._verbose):
            self.show_notice(line)

    def show_text(self, text: str) -> None:
        """Print a complete text on its own lines."""
        self._leave_prompt()
        self._end_line()
        self._put(for_terminal(text) + "\n")

    def show_notice(self, text: str) -> None:
        """Print a notice on stderr."""
        self._print_notice(text, dim=True)

    def show_error(self, text: str) -> None:
        """Print an error on stderr."""
        self._print_notice(f"everthread: {text}", dim=False)

    def show_question(self, question: str) -> None:
        self._leave_prompt()
        self._end_line()
        self._put(f"{strip_control_chars(question)} ")
        self._mid_line = True

    def show_prompt(self) -> None:
        """Print the input prompt, once."""
        if self._prompts and not self._at_prompt:
            self._end_line()
            self._put("> ")
            self._at_prompt = True

    def show_recap(self, recap: Recap) -> None:
        if recap.last_turns:
            self.show_notice(f"Last message: {quote_start(recap.last_turns[-1].question)}")

    def show_status(self, status: Status) -> None:
        """Ignore the status: plain streams have no status line."""

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        return None

    # --- Streams -----------------------------------------------------------------------------------------------------

    def _end_answer(self, event: TurnEnded) -> None:
        """Print an answer that was not streamed. Turns of a session that the user left are reported by the command."""
        is_left = event.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN)
        if event.text and not self._written and not is_left:
            self._write(event.text)
        self._end_line()

    def _write(self, text: str) -> None:
        if text:
            self._leave_prompt()
            self._put(for_terminal(text))
            self._mid_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._put("\n")
            self._mid_line = False

    def _print_notice(self, text: str, *, dim: bool) -> None:
        was_at_prompt = self._at_prompt
        self._leave_prompt()
        if self.streams:
            self._end_line()
        text = strip_control_chars(text)
        with contextlib.suppress(OSError, ValueError):
            click.echo(click.style(text, dim=True) if dim and self._styled else text, err=True)
        if was_at_prompt:
            self.show_prompt()

    def _leave_prompt(self) -> None:
        if self._at_prompt:
            self._put("\n")
            self._at_prompt = False

    def _put(self, text: str) -> None:
        if self.closed:
            return
        try:
            click.echo(text, nl=False)
        except (OSError, ValueError) as error:
            self.closed = True
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                # Report errors other than a closed pipe, such as a full disk: the reader did not cause them.
                why = error.strerror or type(error).__name__
                self.show_error(
                    f"can't write to stdout ({why}); the conversation is kept, see everthread sessions list"
                )
            discard_output()
