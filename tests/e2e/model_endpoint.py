"""Stub model server in a thread, for tests that run commands and wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from everthread.testing.model_server.server import ModelServer, Say, Script


@contextmanager
def model_endpoint(
    *, key: str | None = None, models: tuple[str, ...] = (), script: Script = lambda _: Say("Hello there.")
) -> Iterator[ModelServer]:
    """Answer every request that has the key and names a known model with the same text, unless a script is given."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ModelServer(script, key=key, models=models)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
