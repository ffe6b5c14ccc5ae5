"""The chat view on a full terminal: print output, collect input, schedule redraws."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import termios
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from everthread.agent.events import TurnBegan, TurnEvent
from everthread.cli.output import strip_control_chars
from everthread.cli.status_line import Status, status_line
from everthread.cli.stdin import InputText
from everthread.cli.terminal.layout import InputArea
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.text import wrapped
from everthread.cli.terminal.turn_view import TurnView
from everthread.cli.view import ChatViewHost
from everthread.concurrency import in_daemon_thread
from everthread.config.terminal import Display

if TYPE_CHECKING:
    from everthread.cli.terminal.markdown import MarkdownRenderer
    from everthread.commands.recap import Recap

REDRAW_S = 0.05
"""Seconds between redraws of a streamed answer. Key presses are drawn without this delay."""
_TICK_S = 0.1
_ECHO_CHARS_MAX = 2_000
_AHEAD_S = 0.5
"""Seconds after the start during which a line feed counts as an Enter typed ahead."""
_PROMPT, _QUESTION = "> ", "? "
_LOWER_ROWS = 8
"""Rows left for the input, the menu and the status line."""


class TerminalView:
    """A `ChatView`. Draws from the event loop and never waits for the terminal."""

    interactive = True
    rich = True

    def __init__(self, display: Display, *, verbose: bool) -> None:
        self.closed = False
        self._display = display
        self._ink = TextStyle(display.colour, display.dark)
        self._live = TurnView(self._ink, self._drawing, time.monotonic, verbose=verbose)
        self._drawer: MarkdownRenderer | None = None
        self._input: InputArea | None = None
        self._typed: asyncio.Queue[InputText | None] = asyncio.Queue()
        self._early: list[str | None] | None = []
        """Input before the welcome, to be shown below it; `None` is the end of input, as in `_typed`."""
        self._status = Status()
        self._held: list[str] = []
        """Output to print once the input area exists."""
        self._gap = False
        """True if the last printed line is empty."""
        self._redraw: asyncio.TimerHandle | None = None

    # --- Start and exit ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, helper: ChatViewHost) -> AsyncGenerator[None]:
        self._input = lower = InputArea(
            helper,
            self._ink,
            self._display,
            status=lambda: status_line(self._status, self._columns),
            submit=self._submit,
            leave=lambda: self._submit(None),
        )
        # Print held output above the input area.
        self._let_go()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, helper.interrupt)
        lower.typed_ahead = _typed_ahead()
        loop.call_later(_AHEAD_S, setattr, lower, "typed_ahead", False)
        # prompt_toolkit gets Ctrl-C as a key. Errors end the program with one line, as in every command.
        running = asyncio.ensure_future(lower.app.run_async(handle_sigint=False, set_exception_handler=False))
        running.add_done_callback(lambda _: self._typed.put_nowait(None))
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await self._close(lower, running)

    async def _close(self, lower: InputArea, running: asyncio.Future[None]) -> None:
        if self._redraw is not None:
            self._redraw.cancel()
            self._redraw = None
        if lower.app.is_running:
            lower.app.exit()
        try:
            await running
        except (EOFError, OSError):
            # The terminal was closed.
            self.closed = True

    async def read_message(self) -> InputText | None:
        return await self._typed.get()

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        return await self._input.pick(title, rows) if self._input is not None and rows else None

    # --- Output ------------------------------------------------------------------------------------------------------

    def show_event(self, event: TurnEvent) -> None:
        if isinstance(event, TurnBegan) and self._drawer is None:
            # Import the renderer now; the model takes longer than the import.
            in_daemon_thread(_import_drawing, "import")
        if isinstance(event, TurnBegan):
            self._leave_a_gap()
        if printed := self._live.hear(event, self._columns):
            # Update the live text first, so that the printed text is not shown twice.
            self._show_live()
            self._print(printed)
        self._redraw_soon(REDRAW_S)

    def show_answer(self, text: str) -> None:
        self._leave_a_gap()
        self._print(self._live.drawn(text, self._columns))

    def show_text(self, text: str) -> None:
        self._print(self._wrapped(text) + "\n")

    def show_notice(self, text: str) -> None:
        self._print(self._ink.faint(self._wrapped(text)) + "\n")

    def show_error(self, text: str) -> None:
        self._print(self._ink.bad(self._wrapped(text)) + "\n")

    def show_question(self, question: str) -> None:
        self._print(self._ink.bold(self._wrapped(question)) + "\n")
        if self._input is not None:
            self._input.prefix = _QUESTION

    def show_prompt(self) -> None:
        """Submit early input and restore the normal prompt, as a question may no longer be open."""
        early, self._early = self._early, None
        for text in early or ():
            self._submit(text)
        if self._input is not None:
            self._input.prefix = _PROMPT

    def show_recap(self, recap: Recap) -> None:
        from everthread.cli.terminal.recap import recap_panel

        self._print(recap_panel(recap, self._columns, self._ink))

    def show_status(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            self._redraw_soon(REDRAW_S)

    # --- Drawing -----------------------------------------------------------------------------------------------------

    def _submit(self, text: str | None) -> None:
        if self._early is not None:
            self._early.append(text)
            return
        if text is None:
            self._typed.put_nowait(None)
            return
        if self._input is not None:
            self._input.prefix = _PROMPT
        if text.strip():
            self._print(self._echo(text))
        self._typed.put_nowait(InputText(text))

    def _echo(self, text: str) -> str:
        """Format submitted input for printing above the input area."""
        some = text if len(text) <= _ECHO_CHARS_MAX else f"{text[:_ECHO_CHARS_MAX]} [{len(text)} characters in all]"
        first, *more = wrapped(strip_control_chars(some), self._columns - len(_PROMPT)).split("\n")
        lines = [self._ink.bold(_PROMPT + first), *(self._ink.bold(" " * len(_PROMPT) + line) for line in more)]
        return ("" if self._gap else "\n") + "\n".join(lines) + "\n\n"

    def _wrapped(self, text: str) -> str:
        """Wrap text at word boundaries, keeping indents."""
        return wrapped(strip_control_chars(text), self._columns)

    def _leave_a_gap(self) -> None:
        """Print an empty line unless the last one is empty."""
        if not self._gap:
            self._print("\n")
            self._gap = True

    def _print(self, text: str) -> None:
        self._held.append(text)
        self._gap = text.endswith("\n\n")
        if self._input is not None:
            self._let_go()

    def _let_go(self) -> None:
        text, self._held = "".join(self._held), []
        if text and self._input is not None and not self.closed:
            try:
                self._input.print_above(text)
            except OSError:
                self.closed = True

    def _show_live(self) -> None:
        if self._input is not None:
            rows = max(self._input.output.get_size().rows - _LOWER_ROWS, 3)
            self._input.show_live(self._live.lines(self._columns, rows))

    def _redraw_soon(self, seconds: float) -> None:
        if self._redraw is None and self._input is not None and self._input.app.is_running:
            self._redraw = asyncio.get_running_loop().call_later(seconds, self._redraw_now)

    def _redraw_now(self) -> None:
        self._redraw = None
        self._show_live()
        if self._input is not None:
            self._input.app.invalidate()
        if self._live.running:
            # Animate the spinner and update the elapsed seconds.
            self._redraw_soon(_TICK_S)

    def _drawing(self) -> MarkdownRenderer:
        if self._drawer is None:
            from everthread.cli.terminal.markdown import MarkdownRenderer

            self._drawer = MarkdownRenderer(self._ink)
        return self._drawer

    @property
    def _columns(self) -> int:
        with suppress(OSError, ValueError):
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        return 80


def _typed_ahead() -> bool:
    """Return true if input is already waiting."""
    try:
        waiting = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        # The terminal was closed.
        return False
    return any(waiting)


def _import_drawing() -> None:
    import everthread.cli.terminal.markdown  # noqa: F401 # pyright: ignore[reportUnusedImport]
