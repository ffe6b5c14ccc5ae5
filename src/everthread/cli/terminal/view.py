"""The chat view on a full terminal: print output, collect input, schedule redraws."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from everthread.agent.events import TurnBegan, TurnEvent
from everthread.cli.output import strip_control_chars, terminal_columns
from everthread.cli.status_line import Status, status_line
from everthread.cli.stdin import InputText
from everthread.cli.terminal.input_area import InputArea
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.text import wrap_exactly, wrap_text
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
_INPUT_ROWS = 8
"""Rows left for the input, the menu and the status line."""


class TerminalView:
    """A `ChatView`. Draws from the event loop and never waits for the terminal."""

    interactive = True
    rich = True

    def __init__(self, host: ChatViewHost, display: Display, *, verbose: bool) -> None:
        self.closed = False
        self._style = TextStyle(display.colour, display.dark)
        self._turn = TurnView(self._style, self._get_renderer, time.monotonic, verbose=verbose)
        self._renderer: MarkdownRenderer | None = None
        self._input = InputArea(
            host,
            self._style,
            display,
            status=lambda: status_line(self._status, self._columns),
            submit=self._submit,
        )
        self._typed: asyncio.Queue[InputText | None] = asyncio.Queue()
        self._early: list[str | None] | None = []
        """Input before the welcome, to be shown below it; `None` is the end of input, as in `_typed`."""
        self._status = Status()
        self._gap = False
        """True if the last printed line is empty."""
        self._redraw: asyncio.TimerHandle | None = None

    # --- Start and exit ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        self._input.typed_ahead = _typed_ahead()
        asyncio.get_running_loop().call_later(_AHEAD_S, setattr, self._input, "typed_ahead", False)
        # prompt_toolkit gets Ctrl-C as a key. Errors end the program with one line, as in every command.
        running = asyncio.ensure_future(self._input.app.run_async(handle_sigint=False, set_exception_handler=False))
        running.add_done_callback(lambda _: self._typed.put_nowait(None))
        try:
            yield
        finally:
            await self._close(running)

    async def _close(self, running: asyncio.Future[None]) -> None:
        if self._redraw is not None:
            self._redraw.cancel()
            self._redraw = None
        if self._input.app.is_running:
            self._input.app.exit()
        try:
            await running
        except (EOFError, OSError):
            # The terminal was closed.
            self.closed = True

    async def read_message(self) -> InputText | None:
        return await self._typed.get()

    async def pick(self, title: str, rows: Sequence[str]) -> int | None:
        return await self._input.pick(title, rows) if rows else None

    # --- Output ------------------------------------------------------------------------------------------------------

    def show_event(self, event: TurnEvent) -> None:
        if isinstance(event, TurnBegan) and self._renderer is None:
            # Import the renderer now; the model takes longer than the import.
            in_daemon_thread(_import_markdown, "import")
        if isinstance(event, TurnBegan):
            self._print_gap()
        answer, lines = self._turn.handle(event, self._columns)
        if answer or lines:
            # Update the live text first, so that the printed text is not shown twice.
            self._show_live()
            self._print(self._below_gap(answer) + lines)
        self._redraw_soon(REDRAW_S)

    def show_answer(self, text: str) -> None:
        self._print(self._below_gap(self._turn.render(text, self._columns)))

    def show_text(self, text: str) -> None:
        self._print(self._wrap(text) + "\n")

    def show_notice(self, text: str) -> None:
        self._print(self._style.faint(self._wrap(text)) + "\n")

    def show_error(self, text: str) -> None:
        self._print(self._style.bad(self._wrap(text)) + "\n")

    def show_question(self, question: str) -> None:
        exact = wrap_exactly(strip_control_chars(question), self._columns)
        self._print(self._style.bold(exact) + "\n")
        self._input.prefix = _QUESTION

    def show_prompt(self) -> None:
        """Submit early input and restore the normal prompt, as a question may no longer be open."""
        early, self._early = self._early, None
        for text in early or ():
            self._submit(text)
        self._input.prefix = _PROMPT

    def show_recap(self, recap: Recap) -> None:
        from everthread.cli.terminal.recap import recap_panel

        self._print(recap_panel(recap, self._columns, self._style))

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
        self._input.prefix = _PROMPT
        if text.strip():
            self._print(self._echo(text))
        self._typed.put_nowait(InputText(text))

    def _echo(self, text: str) -> str:
        """Format submitted input for printing above the input area."""
        some = text if len(text) <= _ECHO_CHARS_MAX else f"{text[:_ECHO_CHARS_MAX]} [{len(text)} characters in all]"
        first, *more = wrap_text(strip_control_chars(some), self._columns - len(_PROMPT)).split("\n")
        lines = [self._style.bold(_PROMPT + first), *(self._style.bold(" " * len(_PROMPT) + line) for line in more)]
        return self._below_gap("\n".join(lines) + "\n\n")

    def _wrap(self, text: str) -> str:
        """Wrap text at word boundaries, keeping indents."""
        return wrap_text(strip_control_chars(text), self._columns)

    def _below_gap(self, text: str) -> str:
        """Return the text with an empty line before it, unless the last printed line is empty."""
        return text if self._gap or not text else f"\n{text}"

    def _print_gap(self) -> None:
        """Print an empty line unless the last one is empty."""
        if not self._gap:
            self._print("\n")
            self._gap = True

    def _print(self, text: str) -> None:
        self._gap = text.endswith("\n\n")
        if text and not self.closed:
            try:
                self._input.print_above(text)
            except OSError:
                self.closed = True

    def _show_live(self) -> None:
        rows = max(self._input.output.get_size().rows - _INPUT_ROWS, 3)
        self._input.show_live(self._turn.lines(self._columns, rows))

    def _redraw_soon(self, seconds: float) -> None:
        if self._redraw is None and self._input.app.is_running:
            self._redraw = asyncio.get_running_loop().call_later(seconds, self._redraw_now)

    def _redraw_now(self) -> None:
        self._redraw = None
        self._show_live()
        self._input.app.invalidate()
        if self._turn.running:
            # Animate the spinner and update the elapsed seconds.
            self._redraw_soon(_TICK_S)

    def _get_renderer(self) -> MarkdownRenderer:
        if self._renderer is None:
            from everthread.cli.terminal.markdown import MarkdownRenderer

            self._renderer = MarkdownRenderer(self._style)
        return self._renderer

    @property
    def _columns(self) -> int:
        return terminal_columns() or 80


def _typed_ahead() -> bool:
    """Return true if input is already waiting."""
    try:
        waiting = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        # The terminal was closed.
        return False
    return any(waiting)


def _import_markdown() -> None:
    import everthread.cli.terminal.markdown  # noqa: F401 # pyright: ignore[reportUnusedImport]
