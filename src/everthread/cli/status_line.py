"""The status line of a chat: session, model, queue, context, cost and memory."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.text_format import display_width, shorten

_BETWEEN = " · "
_TITLE_CHARS_MAX = 40


class Status(Struct, frozen=True):
    title: str = ""
    model: str = ""
    context_tokens: int = 0
    """Tokens of the last request and its answer; 0 before the first request of this process."""
    context_tokens_max: int = 0
    cost: float = 0.0
    """Cost of this conversation in dollars."""
    memory: str = ""
    """The worst problem of a memory provider, or that there is none."""
    waiting: int = 0


def status_line(status: Status, columns: int) -> str:
    """Format the status line, most important part first. Parts that do not fit are left out."""
    parts = [
        shorten(status.title or "new session", min(_TITLE_CHARS_MAX, max(columns // 3, 10))),
        status.model.rpartition("/")[2] if columns < 80 else status.model,
        f"{status.waiting} queued" if status.waiting else "",
        _context(status),
        f"${status.cost:.4f}" if 0 < status.cost < 0.1 else f"${status.cost:.2f}" if status.cost else "",
        status.memory,
    ]
    line = ""
    for part in parts:
        longer = f"{line}{_BETWEEN}{part}" if line and part else line or part
        if display_width(longer) + 2 <= columns:
            line = longer
    return f" {line}" if line else shorten(f" {parts[0]}", max(columns, 4))


def _context(status: Status) -> str:
    total = status.context_tokens_max
    if not status.context_tokens or not total:
        return ""
    size = f"{total / 1000:.0f}k" if total >= 10_000 else str(total)
    return f"{100 * status.context_tokens / total:.0f}% of {size} context"
