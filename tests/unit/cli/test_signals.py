"""Signals are handled in the event loop until the end of a block."""

from __future__ import annotations

import asyncio
import os
import signal

from everthread.cli.signals import handle_signals


async def test_a_signal_calls_its_handler_within_the_block_only() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    called = asyncio.Event()
    with handle_signals({signal.SIGUSR1: called.set}):
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(5):
            await called.wait()
    assert signal.getsignal(signal.SIGUSR1) == before
