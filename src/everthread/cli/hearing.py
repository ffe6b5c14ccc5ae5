"""A turn as it is shown on a plain screen while it runs."""

from __future__ import annotations

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
from everthread.cli.screen import Screen
from everthread.cli.show import shortened
from everthread.cli.telling import recalled_in_lines, retrying_in_words
from everthread.domain.model import TurnStatus

_DETAIL_CHARS_MAX = 100


class Hearing:
    """Shows the events of turns that run one after another."""

    def __init__(self, screen: Screen, *, verbose: bool) -> None:
        self._screen = screen
        self._verbose = verbose
        self._written = False
        """Some of the answer that is being written is on the screen."""

    def __call__(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._written = False
            case TextWritten():
                if self._screen.streams:
                    self._screen.write(event.text)
                    self._written = True
            case TurnEnded():
                self._ended(event)
            case ToolBegan() | Retrying() | Steered() | ToolEnded() | Recalled():
                self._beside(event)
            case Compressing() | Compressed() | CompressionFailed() | Reviewed():
                self._screen.notice(event.text)
            case _:
                pass

    def _beside(self, event: ToolBegan | Retrying | Steered | ToolEnded | Recalled) -> None:
        match event:
            case ToolBegan():
                self._written = False
                self._screen.notice(f"* {event.call.name} {shortened(event.call.arguments, _DETAIL_CHARS_MAX)}")
            case Retrying():
                self._written = False
                self._screen.notice(retrying_in_words(event))
            case Steered():
                self._screen.notice(f"Taken up: {shortened(event.text, _DETAIL_CHARS_MAX)}")
            case ToolEnded():
                if self._verbose:
                    self._screen.notice(f"  {event.call.name}: {shortened(event.result, _DETAIL_CHARS_MAX)}")
            case Recalled():
                if self._verbose:
                    for line in recalled_in_lines(event):
                        self._screen.notice(f"  {line}")

    def _ended(self, event: TurnEnded) -> None:
        """What was stopped because its place was left is told of by whoever left it."""
        if event.committed.status in (TurnStatus.LATE, TurnStatus.HIDDEN):
            self._screen.end_line()
            return
        if event.text and not self._written:
            self._screen.write(event.text)
        self._screen.end_line()
