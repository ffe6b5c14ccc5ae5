"""The chat view on plain streams: a pipe, or a terminal that can only print lines."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from everthread.agent.events import TurnEvent
from everthread.cli.chat.plain_output import PlainOutput, TurnPrinter
from everthread.cli.stdin import InputText, LineReader
from everthread.cli.view import ChatViewHost
from everthread.domain.text_format import excerpt

if TYPE_CHECKING:
    from everthread.cli.status_line import Status
    from everthread.commands.recap import Recap


class PlainView:
    """A `ChatView` without a status line or menus."""

    rich = False

    def __init__(self, *, interactive: bool, verbose: bool) -> None:
        self.interactive = interactive
        self._output = PlainOutput(prompts=interactive)
        self._lines = LineReader()
        self._printer = TurnPrinter(self._output, verbose=verbose)

    @property
    def closed(self) -> bool:
        return self._output.closed

    @asynccontextmanager
    async def open(self, helper: ChatViewHost) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, helper.interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            self._output.stop_prompting()

    async def read_message(self) -> InputText | None:
        typed = await self._lines.message()
        if typed is not None:
            self._output.entered()
        return typed

    def show_event(self, event: TurnEvent) -> None:
        self._printer(event)

    def show_answer(self, text: str) -> None:
        self._output.show_text(text)

    def show_text(self, text: str) -> None:
        self._output.show_text(text)

    def show_notice(self, text: str) -> None:
        self._output.show_notice(text)

    def show_error(self, text: str) -> None:
        self._output.show_error(text)

    def show_question(self, question: str) -> None:
        self._output.show_question(f"{question} ")

    def show_prompt(self) -> None:
        self._output.show_prompt()

    def show_recap(self, recap: Recap) -> None:
        if recap.last_turns:
            self._output.show_notice(f"Last message: {excerpt(recap.last_turns[-1].question)}")

    def show_status(self, status: Status) -> None:
        """Ignore the status: plain streams have no status line."""

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        return None
