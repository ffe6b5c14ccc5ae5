"""Process that commits turns until it is stopped: `python -m tests.e2e.commit_worker HOME`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, New
from everthread.domain.model import Inbound, Message, Role, SessionKey


async def work(home: Path) -> None:
    loop = asyncio.get_running_loop()
    stopped = loop.run_in_executor(None, sys.stdin.readline)
    key = SessionKey.parse("agent:main:cli:dm:worker")
    count = 0
    async with Runtime(Settings(home)) as runtime:
        await runtime.start()
        while not stopped.done():
            count += 1
            text = f"message {count} " + "of many words " * 20
            await runtime.lifecycle.accept(Inbound(key, "me", text))
            ticket = await runtime.lifecycle.begin_turn(key)
            assert ticket is not None
            said = [Message(Role.USER, text), Message(Role.ASSISTANT, f"answer {count}")]
            await runtime.lifecycle.commit_turn(ticket, said, "answer")
            if count % 7 == 0:
                await runtime.lifecycle.cross(key, New() if count % 2 else Branch(), owner="me")
            print(count, flush=True)  # noqa: T201 - how the test sees it work


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
