"""A process with a home, there to be killed: does what it is told on standard input, a line of JSON at a time.

Each answer is a line too, and comes when what it speaks of is stored. Memory is whatever the home's settings name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from everthread.bootstrap import Runtime
from everthread.config import load
from everthread.domain.boundary import New, Resume
from everthread.domain.model import Inbound, Message, Role, SessionKey

KEY = SessionKey.parse("agent:main:cli:dm:1")


async def done(runtime: Runtime, what: str, text: str) -> Any:
    owner = runtime.settings.owner
    match what:
        case "say":
            await runtime.lifecycle.accept(Inbound(KEY, owner, text))
            ticket = await runtime.lifecycle.begin_turn(KEY)
            assert ticket is not None
            said = [Message(Role.USER, text), Message(Role.ASSISTANT, "I see.")]
            await runtime.lifecycle.commit_turn(ticket, said, "I see.")
            return ticket.ref.session_id
        case "new" | "resume":
            crossing = await runtime.lifecycle.cross(KEY, New() if what == "new" else Resume(text), owner=owner)
            assert crossing.ref is not None
            assert crossing.refusal is None
            return crossing.ref.session_id
        case "drain":
            return await runtime.drain(float(text))
        case _:
            ref = await runtime.lifecycle.current(KEY)
            assert ref is not None
            recall = await runtime.memory.recall(text, ref=ref, deadline_s=10)
            return [[item.session_id, item.turn, item.text] for item in recall.items]


async def main(home: Path) -> None:
    async with Runtime(load(str(home))) as runtime:
        await runtime.start()
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, text = json.loads(line)
            sys.stdout.write(json.dumps(await done(runtime, what, text)) + "\n")
            sys.stdout.flush()


asyncio.run(main(Path(sys.argv[1])))
