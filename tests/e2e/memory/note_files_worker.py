"""Worker process that synchronises the note files of a home whenever it reads a line, and answers with the result."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(home: str) -> None:
    async with Runtime(Settings(Path(home))) as runtime:
        answer("ready")
        while await asyncio.to_thread(sys.stdin.readline):
            answer(await runtime.sync_notes(runtime.settings.owner) or "done")


asyncio.run(main(sys.argv[1]))
