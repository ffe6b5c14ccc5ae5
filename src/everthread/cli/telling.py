"""What is said of a turn beside its answer, wherever it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.agent.events import Recalled, Retrying
from everthread.cli.show import shortened

_DETAIL_CHARS_MAX = 100
_CALL_CHARS_MAX = 2_000


def retrying_in_words(event: Retrying) -> str:
    when = f" in {event.wait_s:.0f} s" if event.wait_s >= 1 else ""
    return f"{event.why}; asking {event.model}{when}"


def recalled_in_lines(event: Recalled) -> Sequence[str]:
    """What memory came up with, and which providers came too late."""
    return [
        *(
            f"recalled ({' '.join(filter(None, (item.provider, item.session_id)))}): "
            f"{shortened(item.text, _DETAIL_CHARS_MAX)}"
            for item in event.items
        ),
        *(f"recalled nothing in time: {name}" for name in event.missing),
    ]


def call_in_words(name: str, arguments: str) -> str:
    """A call as somebody is asked about it: as much of it as can be read, and how much there is beyond that."""
    text = shortened(arguments, _CALL_CHARS_MAX)
    more = f" [{len(arguments)} characters in all]" if len(arguments) > _CALL_CHARS_MAX else ""
    return f"{name} {text}{more}"
