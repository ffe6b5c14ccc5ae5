"""Print a chat on plain streams: answers, results and prompts on stdout, notices and errors on stderr."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from everthread.agent.events import (
    Compressed,
    Compressing,
    CompressionFailed,
    Recalled,
    Retrying,
    Reviewed,
    Steered,
    TextWritten,
    ToolBegan,
    ToolEnded,
    TurnBegan,
    TurnEnded,
    TurnEvent,
)
from everthread.cli.event_text import recalled_in_lines, retrying_in_words
from everthread.cli.output import strip_control_chars
from everthread.config.terminal import display
from everthread.domain.model import TurnStatus
from everthread.domain.text_format import shortened


class PlainOutput:
    """Writer for stdout and stderr. Sets `closed` and stays silent if the reader of stdout has gone."""

    def __init__(self, *, prompts: bool = False) -> None:
        self.streams = sys.stdout is not None and sys.stdout.isatty()
        """True if answers are printed while they are written."""
        self.closed = sys.stdout is None
        self._prompts = prompts
        self._styled = display().term != "dumb"
        self._mid_line = False
        self._at_prompt = False

    def write(self, text: str) -> None:
        """Print a piece of an answer."""
        if text:
            self._leave_prompt()
            self._put(strip_control_chars(text) if self.streams else text)
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._mid_line:
            self._put("\n")
            self._mid_line = False

    def show_text(self, text: str) -> None:
        """Print a complete text on its own lines."""
        self._leave_prompt()
        self.end_line()
        self._put((strip_control_chars(text) if self.streams else text) + "\n")

    def show_notice(self, text: str) -> None:
        """Print a notice on stderr."""
        self._beside(text, dim=True)

    def show_error(self, text: str) -> None:
        """Print an error on stderr."""
        self._beside(f"everthread: {text}", dim=False)

    def show_question(self, question: str) -> None:
        self._leave_prompt()
        self.end_line()
        self._put(strip_control_chars(question))
        self._mid_line = True

    def show_prompt(self) -> None:
        """Print the input prompt, once."""
        if self._prompts and not self._at_prompt:
            self.end_line()
            self._put("> ")
            self._at_prompt = True

    def stop_prompting(self) -> None:
        self._prompts = False

    def entered(self) -> None:
        """Reset the line state after the user pressed Enter: the cursor is at the start of a line."""
        self._at_prompt = False
        self._mid_line = False

    def _beside(self, text: str, *, dim: bool) -> None:
        was_at_prompt = self._at_prompt
        self._leave_prompt()
        if self.streams:
            self.end_line()
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
                self.show_error(f"stdout can't be written ({why}); what was said is kept, see everthread sessions list")
            # Otherwise Python flushes the buffer again at exit and reports the same error.
            with contextlib.suppress(OSError, ValueError):
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), sys.stdout.fileno())


_DETAIL_CHARS_MAX = 100


class TurnPrinter:
    """Prints the events of consecutive turns."""

    def __init__(self, output: PlainOutput, *, verbose: bool) -> None:
        self._output = output
        self._verbose = verbose
        self._written = False
        """True if a part of the current answer is printed."""

    def __call__(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._written = False
            case TextWritten():
                if self._output.streams:
                    self._output.write(event.text)
                    self._written = True
            case TurnEnded():
                self._ended(event)
            case ToolBegan() | Retrying() | Steered() | ToolEnded() | Recalled():
                self._beside(event)
            case Compressing() | Compressed() | CompressionFailed() | Reviewed():
                self._output.show_notice(event.text)
            case _:
                pass

    def _beside(self, event: ToolBegan | Retrying | Steered | ToolEnded | Recalled) -> None:
        match event:
            case ToolBegan():
                self._written = False
                self._output.show_notice(f"* {event.call.name} {shortened(event.call.arguments, _DETAIL_CHARS_MAX)}")
            case Retrying():
                self._written = False
                self._output.show_notice(retrying_in_words(event))
            case Steered():
                self._output.show_notice(f"Taken up: {shortened(event.text, _DETAIL_CHARS_MAX)}")
            case ToolEnded():
                if self._verbose:
                    self._output.show_notice(f"  {event.call.name}: {shortened(event.result, _DETAIL_CHARS_MAX)}")
            case Recalled():
                if self._verbose:
                    for line in recalled_in_lines(event):
                        self._output.show_notice(f"  {line}")

    def _ended(self, event: TurnEnded) -> None:
        """Print an answer that was not streamed. Turns of a session that the user left are reported by the command."""
        if event.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            self._output.end_line()
            return
        if event.text and not self._written:
            self._output.write(event.text)
        self._output.end_line()
