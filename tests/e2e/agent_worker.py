"""Agent process for the kill tests: resume the turn of the previous process, then answer one more message.

The test passes the orders as JSON in the only argument. The worker reports each step on standard output, one line at a
time, so that the test knows the state it was killed in. Its tool appends a line to a file each time it runs. The clock
is an hour further ahead in each process, so that no test waits for a lease to expire.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.agent.events import TextWritten, ToolBegan, ToolEnded, TurnEnded, TurnEvent
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import ProviderSettings, Settings
from everthread.domain.model import ChatType, Inbound, SessionKey
from everthread.domain.spend import Price
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

KEY = SessionKey("main", "cli", ChatType.DM, "1")
OWNER = "me"
LIFE_S = 3600.0


class FastClock:
    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def now(self) -> float:
        return time.time() + self._ahead_s

    def elapsed(self) -> float:
        return time.monotonic() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def heard(event: TurnEvent) -> None:
    match event:
        case TextWritten():
            say("text")
        case ToolBegan():
            say("tool began")
        case ToolEnded():
            say("tool ended")
        case TurnEnded(text=text, problem=problem):
            say("turn ended", text, problem)
        case _:
            pass


async def work(home: Path, url: str, life: int, message: str) -> None:
    async def mark(arguments: Mapping[str, Any], use: ToolUse) -> str:
        with (home / "marks.txt").open("a") as file:
            file.write(f"{use.turn_id}\n")
        await asyncio.sleep(0.05)
        return "marked"

    tool = Tool(ToolSchema("mark", "Leaves a mark.", {"type": "object", "properties": {}}), mark)
    settings = Settings(
        home,
        model="stub/one",
        providers={"stub": ProviderSettings(base_url=url)},
        prices={"stub/one": Price(1.0, 1.0)},
    )
    async with Runtime(settings, tools=(tool,), clock=FastClock(life * LIFE_S)) as runtime:
        await runtime.ready()
        options = TurnOptions(runtime.choices(), heard)
        for turn_id in await runtime.lifecycle.recover():
            await runtime.agent.resume(turn_id, options)
            say("recovered", turn_id)
        while await runtime.agent.answer(KEY, options):
            say("caught up")
        say("ready")
        if message:
            await runtime.lifecycle.accept(Inbound(KEY, OWNER, message, update_id=message))
            say("accepted", message)
            await runtime.agent.answer(KEY, options)
    say("bye")


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    asyncio.run(work(Path(orders["home"]), orders["url"], orders["life"], orders["message"]))
