"""Render the events of a turn: text to print permanently, and live lines below it that may still change."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.agent.events import (
    ReasoningWritten,
    Recalled,
    Retrying,
    TextWritten,
    ToolBegan,
    ToolEnded,
    TurnBegan,
    TurnEnded,
    TurnEvent,
)
from everthread.cli.event_text import event_notices
from everthread.cli.output import strip_control_chars
from everthread.cli.terminal.markdown_stream import MarkdownStream
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.text import wrap_text
from everthread.domain.model import ToolCall, TurnStatus
from everthread.domain.text_format import shorten

if TYPE_CHECKING:
    from everthread.cli.terminal.markdown import MarkdownRenderer

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPINS_PER_S = 10
_MARKDOWN_CHARS_MAX = 4000
"""Maximum characters of an unfinished block to render as Markdown; a longer one is shown as plain text."""
_MARGIN = 4
_RESULT_CHARS_MAX = 500
_CODES = re.compile(r"\x1b\[[0-9;]*m")


class _Tool(Struct):
    call: ToolCall
    began: float


class TurnView:
    """Renders the consecutive turns of one chat."""

    def __init__(
        self, style: TextStyle, renderer: Callable[[], MarkdownRenderer], now: Callable[[], float], *, verbose: bool
    ) -> None:
        self._style = style
        self._renderer = renderer
        self._now = now
        self._verbose = verbose
        self._blocks = MarkdownStream()
        self._began: float | None = None
        self._activity = ""
        self._tools: dict[str, _Tool] = {}
        self._written = False
        """True if a part of the current answer is visible."""
        # Drawn with every key press, and mostly unchanged.
        self._render_rest = lru_cache(maxsize=1)(self._render)

    @property
    def running(self) -> bool:
        return self._began is not None

    def handle(self, event: TurnEvent, columns: int) -> tuple[str, str]:
        """Handle an event. Return what to print permanently: a part of the answer, and lines that follow it."""
        lines = self._lines_about(event, columns)
        lines += "".join(self._note(line, columns) for line in event_notices(event, verbose=self._verbose))
        return self._progress(event, columns), lines

    def _lines_about(self, event: TurnEvent, columns: int) -> str:
        if isinstance(event, ToolEnded):
            return self._tool_ended(event, columns)
        if isinstance(event, Retrying) and self._written:
            return self._note("The partial answer above is discarded.", columns)
        return ""

    def _progress(self, event: TurnEvent, columns: int) -> str:
        """Update the live lines. Return the part of the answer that the event finishes."""
        match event:
            case TurnBegan():
                self._began, self._activity, self._written = self._now(), "recalling", False
                self._blocks = MarkdownStream()
                self._tools.clear()
            case TextWritten():
                self._activity, self._written = "", True
                return self._finished(self._blocks.feed(strip_control_chars(event.text)), columns)
            case ReasoningWritten() | Recalled():
                self._activity = "thinking"
            case Retrying():
                self._blocks, self._written, self._activity = MarkdownStream(), False, "retrying"
            case ToolBegan():
                before = self._finished(self._blocks.end(), columns)
                self._written, self._activity = False, "thinking"
                self._tools[event.call.id] = _Tool(event.call, self._now())
                return before
            case TurnEnded():
                return self._ended(event, columns)
            case _:
                pass
        return ""

    def lines(self, columns: int, rows: int) -> str:
        """Return the text that may still change, on at most `rows` rows."""
        if self._began is None:
            return ""
        rest = self._rest(columns, max(rows - len(self._tools) - 1, 1))
        lines = [rest] if rest else []
        lines += [self._running_tool(tool, columns) for tool in self._tools.values()]
        if self._activity and not self._tools:
            lines.append(self._style.faint(f"{self._spin()} {self._activity}{self._since(self._began)}"))
        return "\n".join(lines)

    # --- Pieces ------------------------------------------------------------------------------------------------------

    def _ended(self, event: TurnEnded, columns: int) -> str:
        left = self._blocks.end()
        self._began, self._activity = None, ""
        self._tools.clear()
        if event.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            # The user has left the session; the command that left it reports the turn.
            return ""
        if event.text and not self._written:
            return self.render(event.text, columns)
        return self._finished(left, columns)

    def _tool_ended(self, event: ToolEnded, columns: int) -> str:
        tool = self._tools.pop(event.call.id, None)
        took = f" {_seconds(self._now() - tool.began)}" if tool else ""
        called = shorten(f"{event.call.name} {event.call.arguments}", columns - len(took) - _MARGIN)
        line = f"{self._style.good('✓')} {called}{self._style.faint(took)}\n"
        return line + (self._note(f"  {shorten(event.result, _RESULT_CHARS_MAX)}", columns) if self._verbose else "")

    def _running_tool(self, tool: _Tool, columns: int) -> str:
        since = self._since(tool.began)
        called = shorten(f"{tool.call.name} {tool.call.arguments}", columns - len(since) - _MARGIN)
        return f"{self._style.accent(self._spin())} {called}{self._style.faint(since)}"

    def _note(self, text: str, columns: int) -> str:
        return self._style.faint(wrap_text(strip_control_chars(text), columns)) + "\n"

    def render(self, text: str, columns: int) -> str:
        """Render a complete answer."""
        blocks = MarkdownStream()
        return self._finished([*blocks.feed(strip_control_chars(text)), *blocks.end()], columns)

    def _finished(self, blocks: list[str], columns: int) -> str:
        return "".join(_trim(self._renderer().markdown(block, columns)) + "\n\n" for block in blocks)

    def _rest(self, columns: int, rows: int) -> str:
        text = self._blocks.rest
        return self._render_rest(text, columns, rows, self._blocks.in_code) if text.strip() else ""

    def _render(self, text: str, columns: int, rows: int, in_code: bool) -> str:
        if in_code or len(text) > _MARKDOWN_CHARS_MAX:
            drawn = self._renderer().plain(text[-rows * columns :], columns)
        else:
            drawn = self._renderer().markdown(text, columns)
        return "\n".join(_trim(drawn).split("\n")[-rows:])

    def _spin(self) -> str:
        return _SPINNER[int(self._now() * _SPINS_PER_S) % len(_SPINNER)]

    def _since(self, began: float) -> str:
        seconds = self._now() - began
        return f" {seconds:.0f} s" if seconds >= 1 else ""


def _trim(drawn: str) -> str:
    """Remove blank lines at both ends."""
    lines = drawn.split("\n")
    full = [row for row, line in enumerate(lines) if _CODES.sub("", line).strip()]
    return "\n".join(lines[full[0] : full[-1] + 1]) if full else ""


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"
