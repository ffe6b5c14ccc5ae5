"""The conversation on plain streams: in a pipe, or on a terminal that can do no more than show lines."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from everthread.agent.events import TurnEvent
from everthread.cli.chat.plain_output import Hearing, Screen
from everthread.cli.stdin import Lines, Typed
from everthread.cli.view import ChatViewHost
from everthread.domain.text_format import excerpt

if TYPE_CHECKING:
    from everthread.cli.status_line import Status
    from everthread.commands.recap import Recap


class Plain:
    """A `Face`."""

    capable = False

    def __init__(self, *, interactive: bool, verbose: bool) -> None:
        self.interactive = interactive
        self._screen = Screen(prompts=interactive)
        self._lines = Lines()
        self._hearing = Hearing(self._screen, verbose=verbose)

    @property
    def gone(self) -> bool:
        return self._screen.gone

    @asynccontextmanager
    async def open(self, helper: ChatViewHost) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, helper.interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            self._screen.prompt_no_more()

    async def message(self) -> Typed | None:
        typed = await self._lines.message()
        if typed is not None:
            self._screen.entered()
        return typed

    def hear(self, event: TurnEvent) -> None:
        self._hearing(event)

    def answer(self, text: str) -> None:
        self._screen.say(text)

    def say(self, text: str) -> None:
        self._screen.say(text)

    def notice(self, text: str) -> None:
        self._screen.notice(text)

    def complain(self, text: str) -> None:
        self._screen.complain(text)

    def ask(self, question: str) -> None:
        self._screen.ask(f"{question} ")

    def prompt(self) -> None:
        self._screen.prompt()

    def recap(self, recap: Recap) -> None:
        if recap.exchanges:
            self._screen.notice(f"The last thing said: {excerpt(recap.exchanges[-1].asked)}")

    def show_status(self, status: Status) -> None:
        """There is no place for it."""

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        return None
