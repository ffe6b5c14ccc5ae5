"""Handle signals in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from signal import Signals


@contextmanager
def handle_signals(handlers: Mapping[Signals, Callable[[], None]]) -> Generator[None]:
    """Call the handlers from the running event loop until the end of the block."""
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
