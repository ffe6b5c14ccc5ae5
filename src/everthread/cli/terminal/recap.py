"""The panel with the last turns, shown when a session is resumed."""

from __future__ import annotations

import re

from everthread.cli.terminal.styles import TextStyle
from everthread.commands.recap import Recap, RecapTurn, format_tools
from everthread.domain.text_format import local_time, pluralize, shorten

_COLUMNS_MAX = 100
_MARKS = re.compile(r"^#{1,6} |\*\*|`")
"""Markdown marks, removed because this text is not rendered."""


def recap_panel(recap: Recap, columns: int, style: TextStyle) -> str:
    """A panel without a right border, which wide scripts would misalign."""
    width = min(columns, _COLUMNS_MAX) - 2
    heading = f"{recap.title or recap.session_id} · {pluralize(recap.turns, 'turn')} · {local_time(recap.active_at)}"
    lines = [f"╭─ {shorten(heading, width - 2)}"]
    for turn in recap.last_turns:
        lines += [f"│ {line}" for line in _turn_lines(turn, width, style)]
    return "\n".join([*lines, "╰─"]) + "\n"


def _turn_lines(turn: RecapTurn, width: int, style: TextStyle) -> list[str]:
    lines = [style.bold("> " + shorten(turn.question, width - 2))]
    if turn.tools:
        lines.append(style.faint("  " + shorten(f"[{format_tools(turn.tools)}]", width - 2)))
    if turn.answer:
        lines.append("  " + shorten(_MARKS.sub("", turn.answer), width - 2))
    if turn.status.label:
        lines.append(style.faint(f"  ({turn.status.label})"))
    return lines
