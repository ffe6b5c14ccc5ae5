"""What one sees on coming back: the last exchanges, each on a line or two."""

from __future__ import annotations

import re

from everthread.cli.terminal.styles import TextStyle
from everthread.commands.recap import Exchange, Recap, tools_in_words
from everthread.domain.text_format import counted, local_time, shortened

_COLUMNS_MAX = 100
_MARKS = re.compile(r"^#{1,6} |\*\*|`")
"""Of Markdown, what only disturbs where it is not drawn."""


def recap_panel(recap: Recap, columns: int, ink: TextStyle) -> str:
    """A panel with an open right side: text of any script may stand in it."""
    width = min(columns, _COLUMNS_MAX) - 2
    heading = f"{recap.title or recap.session_id} · {counted(recap.turns, 'turn')} · {local_time(recap.active_at)}"
    lines = [f"╭─ {shortened(heading, width - 2)}"]
    for exchange in recap.exchanges:
        lines += [f"│ {line}" for line in _exchange(exchange, width, ink)]
    return "\n".join([*lines, "╰─"]) + "\n"


def _exchange(exchange: Exchange, width: int, ink: TextStyle) -> list[str]:
    lines = [ink.bold("> " + shortened(exchange.asked, width - 2))]
    if exchange.tools:
        lines.append(ink.faint("  " + shortened(f"[{tools_in_words(exchange.tools)}]", width - 2)))
    if exchange.answered:
        lines.append("  " + shortened(_MARKS.sub("", exchange.answered), width - 2))
    if exchange.status.in_words:
        lines.append(ink.faint(f"  ({exchange.status.in_words})"))
    return lines
