"""A boundary in one process while a turn with tools runs in another: the turn begins nothing after the commit."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.boundary_worker import EFFECTS, KEY, OWNER, settings_for
from tests.runtime import until

from everthread.adapters.sqlite.connection import connect
from everthread.bootstrap.runtime import Runtime
from everthread.commands.context import CommandContext
from everthread.commands.registry import ParsedCommand, parse, run_command
from everthread.domain.boundary import Resume
from everthread.domain.model import ChatType, SessionKey, ToolCall
from everthread.testing.model_server.http import HttpRequest
from everthread.testing.model_server.replies import End, Say
from everthread.testing.model_server.server import Chat, Messages, ModelServer

WORKER = Path(__file__).parent.parent / "boundary_worker.py"
SECOND_TERMINAL = SessionKey("main", "cli", ChatType.DM, "2")
ROUNDS = 25
"""For each of the two commands."""
PATIENCE_S = 15.0
STOP_S_MAX = 2.0
"""Far less than any call that holds takes, and than the time until the next heartbeat."""
SITUATIONS = ("calls", "delegated calls", "model calls", "questions", "a tool", "an approval", "a model")

MARKS = tuple(ToolCall(f"c{n}", "mark_too" if n in (2, 3) else "mark", "{}") for n in range(6))
UNKNOWN = ToolCall("unknown", "no_such_tool", "{}")
"""Answered with an error message, without a tool call."""
ASKED = ToolCall("asked", "danger", "{}")
QUESTIONS = tuple(ToolCall(f"q{n}", "danger", '{"refuse": true}') for n in range(30))
HELD_TOOL = ToolCall("held", "mark", '{"hold": true}')
HELD_QUESTION = ToolCall("held", "danger", '{"hold": true}')
DELEGATED = ToolCall("work", "delegate", '{"task": "child calls"}')

AUDIT = """
CREATE TABLE audit (call_id TEXT, fate TEXT);
CREATE TRIGGER audit_tools AFTER INSERT ON tool_rows BEGIN
    INSERT INTO audit SELECT NEW.call_id, fate FROM slots WHERE turn_id = NEW.turn_id;
END;
"""
"""Records the fate of the turn of each tool call, in the transaction that begins the call."""


def answer(request: Chat | Messages) -> Say:
    """Hold the turn in the situation that the message names, or have it call tools for ever."""
    situation = request.last_user_text.splitlines()[0]
    if "child calls" in situation:
        return Say(calls=MARKS)
    match situation.partition(":")[0]:
        case "calls":
            return Say(calls=(*MARKS[:3], ASKED))
        case "questions":
            return Say(calls=QUESTIONS)
        case "model calls":
            return Say(calls=(UNKNOWN,))
        case "delegated calls":
            return Say(calls=(DELEGATED,))
        case "a tool":
            return Say(calls=(HELD_TOOL,))
        case "an approval":
            return Say(calls=(HELD_QUESTION,))
        case "a model":
            return Say("a beginning", chunks=8, end=End.STALL)
        case _:
            return Say("fine")


class TwoProcesses:
    """The worker, and a runtime of this process on the same home."""

    def __init__(self, home: Path, runtime: Runtime, worker: asyncio.subprocess.Process) -> None:
        self._home, self.runtime, self._worker = home, runtime, worker
        self.model_calls: list[float] = []

    async def say(self, text: str) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.write(json.dumps(text).encode() + b"\n")
        await self._worker.stdin.drain()

    async def hear(self, kind: str) -> list[Any]:
        """Return the worker's next report of that kind."""
        assert self._worker.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self._worker.stdout.readline():
                if (heard := json.loads(line))[0] == kind:
                    return heard
        raise AssertionError(f"the worker ended: {(self._home / 'worker.err').read_text()[-2000:]}")

    async def until_running(self, situation: str, calls: int) -> None:
        if situation in ("a tool", "an approval"):
            await self.hear("holds")
            return
        enough = len(self.model_calls) + (1 if situation == "a model" else calls)
        await until(lambda: len(self.model_calls) >= enough)

    async def order(self, text: str, key: SessionKey) -> float:
        """Run a command here; return a time right after its commit."""
        command = parse(text)
        assert isinstance(command, ParsedCommand)
        context = CommandContext(self.runtime, key, OWNER)
        result = await run_command(context, command)
        assert result.ok, result.text
        return time.time()

    def effects_after(self, at: float) -> list[str]:
        lines = [json.loads(line) for line in (self._home / EFFECTS).read_text().splitlines()]
        return [line[0] for line in lines if line[1] > at] + ["model" for begun in self.model_calls if begun > at]


@asynccontextmanager
async def two_processes(home: Path) -> AsyncIterator[TwoProcesses]:
    begun: list[float] = []

    def on_request(request: HttpRequest) -> None:
        begun.append(time.time())

    async with ModelServer(answer, on_request=on_request) as server:
        (home / EFFECTS).touch()
        async with Runtime(settings_for(home, server.base_url)) as runtime:
            await runtime.ready()
            with (home / "worker.err").open("wb") as errors:
                worker = await asyncio.create_subprocess_exec(
                    sys.executable, str(WORKER), str(home), server.base_url, stdin=-1, stdout=-1, stderr=errors
                )
            both = TwoProcesses(home, runtime, worker)
            both.model_calls = begun
            try:
                await both.hear("ready")
                yield both
                assert worker.stdin is not None
                worker.stdin.close()
                assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == 0, (home / "worker.err").read_text()[-2000:]
            finally:
                with suppress(ProcessLookupError):
                    worker.kill()
                await worker.wait()


@pytest.mark.timeout(120)
async def test_a_turn_begins_nothing_after_a_boundary_in_another_process(tmp_path: Path) -> None:
    """Run /undo in a second terminal on the session and /new on the turn's own key, in every situation of the turn."""
    dice = random.Random(7)
    async with two_processes(tmp_path) as both:
        with_audit = connect(str(tmp_path / "everthread.db"))
        with_audit.execute(AUDIT)
        await both.say("hello")
        await both.hear("ended")
        ref = await both.runtime.lifecycle.current(KEY)
        assert ref is not None
        await both.runtime.lifecycle.cross(SECOND_TERMINAL, Resume(ref.session_id), owner=OWNER)
        took_s: list[float] = []
        for number in range(2 * ROUNDS):
            command, key, status = ("/undo", SECOND_TERMINAL, "hidden") if number < ROUNDS else ("/new", KEY, "late")
            situation = SITUATIONS[number % len(SITUATIONS)]
            waiting = asyncio.ensure_future(both.until_running(situation, calls=dice.choice((2, 3, 4))))
            await asyncio.sleep(0)
            await both.say(f"{situation}: {number}")
            await waiting
            await asyncio.sleep(dice.random() * 0.01)
            committed_at = await both.order(command, key)
            _, stored_as, problem = await both.hear("ended")
            took_s.append(time.time() - committed_at)
            begun = Counter(both.effects_after(committed_at))
            where = f"round {number}, {command} during {situation}"
            # The calls in flight: one, or two of a tool that runs in parallel.
            assert begun.total() <= 1 or begun == {"tool": 2}, f"{where}: {begun} began after the commit"
            assert stored_as == status, f"{where}: {problem}"
            assert "elsewhere" in problem, where
        audit = list(with_audit.execute("SELECT call_id, fate FROM audit"))
        with_audit.close()
    assert len(audit) > 2 * ROUNDS, "too few tool calls ran to show anything"
    assert [row for row in audit if row[1] != "live"] == [], "tool calls began after the boundary's commit"
    assert max(took_s) < STOP_S_MAX, "the running turn was not woken"
