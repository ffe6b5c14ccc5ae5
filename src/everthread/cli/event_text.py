"""Text of turn events other than the answer, shared by all views."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.agent.events import Recalled, Retrying
from everthread.domain.text_format import shortened

_DETAIL_CHARS_MAX = 100


def retrying_in_words(event: Retrying) -> str:
    when = f" in {event.wait_s:.0f} s" if event.wait_s >= 1 else ""
    return f"{event.why}; asking {event.model}{when}"


def recalled_in_lines(event: Recalled) -> Sequence[str]:
    """List the recalled items and the providers that missed the deadline."""
    return [
        *(
            f"recalled ({' '.join(filter(None, (item.provider, item.session_id)))}): "
            f"{shortened(item.text, _DETAIL_CHARS_MAX)}"
            for item in event.items
        ),
        *(f"recalled nothing in time: {name}" for name in event.missing),
    ]
