"""Notices about the events of a turn, shared by all views."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.agent.events import (
    Compressed,
    Compressing,
    CompressionFailed,
    Recalled,
    Retrying,
    Reviewed,
    Steered,
    TurnEvent,
)
from everthread.domain.text_format import shorten
from everthread.ports.memory import RecallItem

_DETAIL_CHARS_MAX = 100


def event_notices(event: TurnEvent, *, verbose: bool) -> Sequence[str]:
    """Return the lines to show for an event beside the answer. Answers and tool calls look different in each view."""
    match event:
        case Retrying():
            when = f" in {event.wait_s:.0f} s" if event.wait_s >= 1 else ""
            return [f"{event.why}; asking {event.model}{when}"]
        case Steered():
            return [f"Passed to the running answer: {shorten(event.text, _DETAIL_CHARS_MAX)}"]
        case Recalled() if verbose:
            return [*map(_recall_line, event.items), *(f"recalled nothing in time: {name}" for name in event.missing)]
        case Compressing() | Compressed() | CompressionFailed() | Reviewed():
            return [event.text]
        case _:
            return ()


def _recall_line(item: RecallItem) -> str:
    source = " ".join(filter(None, (item.provider, item.session_id)))
    return f"recalled ({source}): {shorten(item.text, _DETAIL_CHARS_MAX)}"
