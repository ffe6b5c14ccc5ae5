"""What a conversation needs of the place where it is shown, be it a pipe or a terminal with all it can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from everthread.agent.events import TurnEvent
    from everthread.cli.status_line import Status
    from everthread.cli.stdin import Typed
    from everthread.commands.completion import Candidate
    from everthread.commands.recap import Recap


class ChatView(Protocol):
    interactive: bool
    """Somebody is there, who can be asked."""
    rich: bool
    """It has a line of its own for where one is, and lists to choose from."""

    @property
    def closed(self) -> bool:
        """Nobody can read what is shown any more."""
        ...

    def open(self, helper: ChatViewHost) -> AbstractAsyncContextManager[None]:
        """Be there, until the end of the block; afterwards things can still be said."""
        ...

    async def read_message(self) -> Typed | None:
        """What is entered next; `None` at the end."""
        ...

    def show_event(self, event: TurnEvent) -> None: ...
    def show_answer(self, text: str) -> None:
        """A whole answer that was written elsewhere, or before."""
        ...

    def show_text(self, text: str) -> None:
        """Something whole, on lines of its own."""
        ...

    def show_notice(self, text: str) -> None:
        """Something beside the conversation."""
        ...

    def show_error(self, text: str) -> None:
        """Something that went wrong."""
        ...

    def show_question(self, question: str) -> None:
        """A question that the next thing entered answers."""
        ...

    def show_prompt(self) -> None:
        """It is the user's turn."""
        ...

    def show_recap(self, recap: Recap) -> None:
        """Where one is now, and what was said there last."""
        ...

    def show_status(self, status: Status) -> None: ...
    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        """Which of the rows is meant; `None` if none is, or nobody can be asked."""
        ...


class ChatViewHost(Protocol):
    """What a face can ask of the conversation."""

    def interrupt(self) -> None:
        """The user has pressed Ctrl-C."""
        ...

    async def candidates(self, text: str) -> Sequence[Candidate]:
        """What the text may be completed to."""
        ...

    async def asked_before(self) -> Sequence[str]:
        """What was asked before, the latest first."""
        ...
