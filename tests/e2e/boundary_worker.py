"""Process that answers one message after another, for tests that cross boundaries in another process meanwhile.

Reads messages from standard input and reports on standard output, both one JSON line each. Every tool call and every
question for approval is appended to a file before it does anything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.agent.events import ApprovalRequest
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import LimitSettings, ProviderSettings, ReviewSettings, Settings
from everthread.domain.model import ChatType, Inbound, SessionKey, SessionRef
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

KEY = SessionKey("main", "cli", ChatType.DM, "1")
OWNER = "me"
EFFECTS = "effects.jsonl"
SHORT_S = 0.002
FOREVER_S = 600.0
_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"hold": {"type": "boolean"}}}


def settings_for(home: Path, url: str) -> Settings:
    return Settings(
        home,
        model="stub/one",
        providers={"stub": ProviderSettings(base_url=url)},
        review=ReviewSettings(every_turns=0),
        limits=LimitSettings(iterations=10_000),
    )


def report(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def work(home: Path, url: str) -> None:
    file = os.open(home / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def record(kind: str, call_id: str, hold: bool) -> None:
        os.write(file, json.dumps([kind, time.time(), call_id]).encode() + b"\n")
        os.fsync(file)
        if hold:
            report("holds", kind)
        await asyncio.sleep(FOREVER_S if hold else SHORT_S)

    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await record("tool", use.call_id, bool(arguments.get("hold")))
        return "done"

    async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
        await record("approval", request.call.id, "hold" in request.call.arguments)
        return "refuse" not in request.call.arguments

    tools = (
        Tool(ToolSchema("mark", "Leaves a mark.", _SCHEMA), run),
        Tool(ToolSchema("mark_too", "Leaves a mark besides others.", _SCHEMA), run, parallel=True),
        Tool(ToolSchema("danger", "Needs approval.", _SCHEMA), run, dangerous=True),
    )
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Runtime(settings_for(home, url), tools=tools) as runtime:
        await runtime.ready()
        report("ready")
        while line := await lines.readline():
            await runtime.lifecycle.accept(Inbound(KEY, OWNER, json.loads(line)))
            ended = await runtime.agent.answer(KEY, TurnOptions(runtime.choices(), approve=approve))
            assert ended is not None
            report("ended", ended.committed.status.value, ended.problem)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
