"""The interface between a chat and its view, which is a plain stream or a full terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from everthread.agent.events import TurnEvent
    from everthread.cli.status_line import Status
    from everthread.cli.stdin import InputText
    from everthread.commands.completion import Candidate
    from everthread.commands.recap import Recap


class ChatView(Protocol):
    interactive: bool
    """True if a user is present and can answer questions."""
    rich: bool
    """True if the view has a status line and menus."""

    closed: bool
    """True if the output can no longer be read."""

    def open(self) -> AbstractAsyncContextManager[None]:
        """Read input until the end of the block. Output works afterwards too."""
        ...

    async def read_message(self) -> InputText | None:
        """Return the next message; `None` at the end of input."""
        ...

    def show_event(self, event: TurnEvent) -> None: ...
    def show_answer(self, text: str) -> None:
        """Show a complete answer that another client wrote, or an earlier process."""
        ...

    def show_text(self, text: str) -> None:
        """Show a complete text on its own lines."""
        ...

    def show_notice(self, text: str) -> None:
        """Show a notice beside the conversation."""
        ...

    def show_error(self, text: str) -> None:
        """Show an error."""
        ...

    def show_question(self, question: str) -> None:
        """Show a question. The next input answers it."""
        ...

    def show_prompt(self) -> None:
        """Show that the user can type."""
        ...

    def show_recap(self, recap: Recap) -> None:
        """Show the current session and its last turns."""
        ...

    def show_status(self, status: Status) -> None: ...
    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        """Let the user choose a row. Return its index; `None` if the user chose none or the view has no menus."""
        ...


class ChatViewHost(Protocol):
    """The chat, as its view calls it."""

    def interrupt(self) -> None:
        """Handle Ctrl-C."""
        ...

    async def candidates(self, text: str) -> Sequence[Candidate]:
        """Return completions for the text."""
        ...

    async def history(self) -> Sequence[str]:
        """Return earlier messages, newest first."""
        ...
