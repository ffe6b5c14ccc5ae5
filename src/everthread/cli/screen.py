"""What a conversation looks like on plain streams: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from everthread.config.display import display

# Nothing a model or a tool writes may move the cursor or speak to the terminal.
_UNSHOWN = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


def shown(text: str) -> str:
    return text.translate(_UNSHOWN)


class Screen:
    """Prints. If the reader of stdout has gone, it says so (`gone`) and goes on quietly."""

    def __init__(self, *, prompts: bool = False) -> None:
        self.streams = sys.stdout is not None and sys.stdout.isatty()
        """Answers are shown as they come."""
        self.gone = sys.stdout is None
        self._prompts = prompts
        self._styled = display().term != "dumb"
        self._mid_line = False
        self._at_prompt = False

    def write(self, text: str) -> None:
        """A piece of an answer."""
        if text:
            self._leave_prompt()
            self._put(shown(text) if self.streams else text)
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._mid_line:
            self._put("\n")
            self._mid_line = False

    def say(self, text: str) -> None:
        """Something whole, on lines of its own."""
        self._leave_prompt()
        self.end_line()
        self._put((shown(text) if self.streams else text) + "\n")

    def notice(self, text: str) -> None:
        """Something beside the conversation."""
        self._beside(text, dim=True)

    def complain(self, text: str) -> None:
        """Something that went wrong."""
        self._beside(f"everthread: {text}", dim=False)

    def ask(self, question: str) -> None:
        self._leave_prompt()
        self.end_line()
        self._put(shown(question))
        self._mid_line = True

    def prompt(self) -> None:
        """Show that it is the user's turn."""
        if self._prompts and not self._at_prompt:
            self.end_line()
            self._put("> ")
            self._at_prompt = True

    def prompt_no_more(self) -> None:
        self._prompts = False

    def entered(self) -> None:
        """The user has ended a line: the cursor is at the beginning of the next one."""
        self._at_prompt = False
        self._mid_line = False

    def _beside(self, text: str, *, dim: bool) -> None:
        was_at_prompt = self._at_prompt
        self._leave_prompt()
        if self.streams:
            self.end_line()
        with contextlib.suppress(OSError, ValueError):
            click.echo(click.style(shown(text), dim=True) if dim and self._styled else shown(text), err=True)
        if was_at_prompt:
            self.prompt()

    def _leave_prompt(self) -> None:
        if self._at_prompt:
            self._put("\n")
            self._at_prompt = False

    def _put(self, text: str) -> None:
        if self.gone:
            return
        try:
            click.echo(text, nl=False)
        except (OSError, ValueError) as error:
            self.gone = True
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                # Nobody has closed it, so nobody knows: a full disk, say.
                why = error.strerror or type(error).__name__
                self.complain(f"stdout can't be written ({why}); what was said is kept, see everthread sessions list")
            # What is left in the buffer would be tried again, and complained about, at the very end.
            with contextlib.suppress(OSError, ValueError):
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), sys.stdout.fileno())
