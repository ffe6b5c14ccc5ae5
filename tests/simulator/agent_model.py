"""Model for simulated agents: answers from its input, with the faults of real models.

Its answers quote the input, so that checks can trace the source of a summary or a note.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from everthread.agent import titles
from everthread.agent.compression import summarizer as summarising
from everthread.agent.prompt import HOW_TO_WORK_ALONE
from everthread.domain.errors import ModelRefused, ModelUnavailable
from everthread.domain.model import Message, Role, ToolCall
from everthread.domain.spend import BYTES_PER_TOKEN
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, Traits, Usage
from tests.simulator.environment import SimClock, SimProcess
from tests.simulator.note_invariants import condensed, learnt

FAULTS = {
    "summary": ("error", "slow", "slow", "slow", "hang", "garbage", "long", "empty", "bug"),
    "review": ("error", "slow", "slow", "hang", "refused", "bug", "tools"),
    "condensing": (
        "error",
        "slow",
        "slow",
        "hang",
        "refused",
        "bug",
        "garbage",
        "long",
        "empty",
        "leaves out",
        "twice",
    ),
    "work": ("error", "slow", "slow", "hang", "refused", "bug"),
    "turn": ("slow", "refused"),
    "title": ("error", "slow"),
}
"""Faults by purpose of the request."""
CONTEXT_TOKENS = 16_000
REVIEW = "[A review."
CONDENSE = "Make notes shorter."
_NOTE = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)
PADDING = "and so on, as far as anybody can say today. "
_SAID = re.compile(r"^\[turn (\d+)\]\nuser: (.*)$", re.MULTILINE)
_SUMMED = re.compile(r"turn (\d+): (.*)")

Row = tuple[str, str, list[list[str]], str | None]


@dataclass
class SimModelState:
    """State shared by all models of a simulation."""

    clock: SimClock
    violated: Callable[[str], None]
    asked: Callable[[str, Request, list[Row]], None]
    """Called with each request: its purpose and the preceding conversation."""
    faults: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    hit: Counter[str] = field(default_factory=Counter[str])
    numbers: int = 0
    answering: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Requests being answered."""

    def number(self) -> int:
        self.numbers += 1
        return self.numbers


def summed_up(summary: str) -> list[str]:
    """Lines of a summary that state turns: `3: m5.` is the third turn."""
    return [f"{number}: {text}" for number, text in _SUMMED.findall(summary)]


def head_of(prompt: Prompt) -> bytes:
    return json.dumps([prompt.system, [tool.name for tool in prompt.tools]]).encode()


def purpose_of(request: Request, system: str) -> str:
    said = request.tail[0].content
    if said.startswith(summarising.INSTRUCTION):
        return "summary"
    if said.startswith(REVIEW):
        return "review"
    if said.startswith(CONDENSE):
        return "condensing"
    if system == titles.INSTRUCTION:
        return "title"
    return "work" if HOW_TO_WORK_ALONE in system else "turn"


class SimModel:
    """The endpoint as seen by one process."""

    def __init__(self, mind: SimModelState, process: SimProcess) -> None:
        self._mind = mind
        self._process = process

    def traits(self, model: str) -> Traits:
        return Traits(context_tokens=CONTEXT_TOKENS)

    def head(self, prompt: Prompt) -> bytes:
        return head_of(prompt)

    def encode(self, messages: Sequence[Message]) -> bytes:
        rows = [
            [m.role.value, m.content, [[c.id, c.name, c.arguments] for c in m.tool_calls], m.tool_call_id]
            for m in messages
        ]
        return json.dumps(rows).encode()[1:-1]

    async def aclose(self) -> None: ...

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        system, tools = json.loads(request.head)
        purpose = purpose_of(request, system)
        history: list[Row] = json.loads(b"[" + request.history + b"]")
        tail: list[Row] = json.loads(b"[" + self.encode(request.tail) + b"]")
        for rows in (history, tail):
            if wrong := unpaired(rows):
                self._mind.violated(f"a model was asked for a {purpose} with {wrong}")
        self._mind.asked(purpose, request, history)
        place = (self._process.name, purpose, request.tail[0].content)
        if purpose in ("turn", "work") and place in self._mind.answering and not self._process.dead:
            self._mind.violated(f"{self._process.name} answers {place[2]!r} twice at once")
        self._mind.answering.add(place)
        try:
            async with aclosing(self._streamed(purpose, request, history, tools)) as parts:
                async for part in parts:
                    yield part
        finally:
            self._mind.answering.discard(place)

    async def _streamed(
        self, purpose: str, request: Request, history: list[Row], tools: list[str]
    ) -> AsyncGenerator[Delta | Answer, None]:
        waiting = self._mind.faults.get(purpose)
        fault = waiting.pop() if waiting else ""
        if fault:
            self._mind.hit[f"{purpose} {fault}"] += 1
        await self._stumble(fault)
        text, calls = self._said(purpose, request, history, tools, fault)
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            await self._mind.clock.sleep(self._process.random.random() * 0.4)
            if piece:
                yield Delta(piece)
        size = len(request.head) + len(request.history) + sum(len(m.content) for m in request.tail)
        usage = Usage(size // BYTES_PER_TOKEN, len(text) // BYTES_PER_TOKEN + 1)
        yield Answer(Message(Role.ASSISTANT, text, calls), usage, Finish.TOOLS if calls else Finish.STOP)

    async def _stumble(self, fault: str) -> None:
        await self._process.pause()
        match fault:
            case "error":
                raise ModelUnavailable("simulated outage", retry_after_s=3600.0)
            case "refused":
                raise ModelRefused("simulated refusal")
            case "bug":
                raise ValueError("simulated bug")
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "slow":
                await self._mind.clock.sleep(self._process.random.choice((3.0, 20.0, 45.0, 90.0)))
            case _:
                pass

    def _said(
        self, purpose: str, request: Request, history: list[Row], tools: list[str], fault: str
    ) -> tuple[str, tuple[ToolCall, ...]]:
        said = request.tail[0].content
        match purpose:
            case "summary":
                return self._summary(said, fault), ()
            case "review":
                return self._review(request, history, fault)
            case "condensing":
                return self._condensed(said, fault), ()
            case "title":
                return f"About {said.split()[1]}", ()
            case _:
                return self._answer(said, request, tools)

    def _summary(self, asked: str, fault: str) -> str:
        if fault == "garbage":
            return "Here you are! I have summarised everything."
        if fault == "empty":
            return ""
        previous, _, record = asked.partition("=== The conversation since ===")
        lines = [f"- turn {line}" for line in summed_up(previous)]
        lines += [f"- turn {number}: {text}" for number, text in _SAID.findall(record)]
        filling = PADDING * 2_000 if fault == "long" else ""
        # The number makes each summary unique.
        return f"## Goal\n- number {self._mind.number()} {filling}\n\n## Facts\n" + "\n".join(lines)

    def _review(self, request: Request, history: list[Row], fault: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Note the newest message by its first word. With the fault `tools`, also call a forbidden tool."""
        said = [content for role, content, _, _ in history if role == "user"]
        content = f"learnt in {said[-1].split()[0]}" if said else ""
        asked, *since = request.tail
        if since or not content or learnt(content) & learnt(asked.content):
            return "Done.", ()
        arguments = {"action": "add", "target": "memory", "content": content}
        calls = [ToolCall("n1", "memory", json.dumps(arguments))]
        if fault == "tools":
            calls.insert(0, ToolCall("n0", "delegate", json.dumps({"task": "anything"})))
        return "", tuple(calls)

    def _condensed(self, asked: str, fault: str) -> str:
        """Condense notes in groups of three. Notes without a known fact stay unchanged."""
        if fault == "garbage":
            return "Here you are! All notes are shorter now."
        notes = [(number, text) for number, text in _NOTE.findall(asked)]
        known = [note for note in notes if learnt(note[1])]
        groups = [known[at : at + 3] for at in range(0, len(known), 3)]
        lines = [f"{', '.join(n for n, _ in group)}: {condensed(text for _, text in group)}" for group in groups]
        lines += [f"{number}: {text}" for number, text in notes if not learnt(text)]
        match fault:
            case "empty":
                return ""
            case "long":
                return "\n".join(line + PADDING * 20 for line in lines)
            case "leaves out":
                return "\n".join(lines[:-1])
            case "twice":
                return "\n".join([*lines, *lines[:1]])
            case _:
                return "\n".join(lines)

    def _answer(self, said: str, request: Request, tools: list[str]) -> tuple[str, tuple[ToolCall, ...]]:
        dice, last = self._process.random, request.tail[-1]
        choice = dice.random() * (1.0 if last.role is Role.USER else 4.0)
        if choice < 0.15 and "delegate" in tools:
            pieces = range(dice.choice((1, 1, 2)))
            return "", tuple(self._call("delegate", task=f"t{self._mind.number()}.") for _ in pieces)
        if choice < 0.3 and "look" in tools:
            return "", (self._call("look"),)
        if choice < 0.37 and "memory" in tools:
            word = f"w{self._mind.number()}t."
            return "", (self._call("memory", action="add", target="memory", content=word),)
        return f"answer to {said} " + PADDING * dice.choice((15, 30, 30, 60, 250, 350)), ()

    def _call(self, name: str, **arguments: str) -> ToolCall:
        return ToolCall(f"c{self._mind.number()}", name, json.dumps(arguments))


def unpaired(rows: list[Row]) -> str:
    """Describe the first call without a result or result without a call, which endpoints refuse."""
    waiting: list[str] = []
    for role, _, calls, call_id in rows:
        if role == "tool":
            if call_id not in waiting:
                return f"a result without a call: {call_id}"
            waiting.remove(call_id)
        elif waiting:
            return f"calls without a result: {waiting}"
        waiting += [call[0] for call in calls]
    return f"calls without a result: {waiting}" if waiting else ""
