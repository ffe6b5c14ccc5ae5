"""Scripted model without a wire protocol. The real clients have their own tests against servers.

As a real endpoint does, it refuses invalid requests: a call without a result, a result without a call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from everthread.agent.model_call import ModelChoice
from everthread.domain.errors import ModelRefused
from everthread.domain.model import Message, Role, ToolCall
from everthread.domain.spend import Price
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, Traits, Usage


@dataclass
class FakeModel:
    """Answer with the lines in order, then repeat the last one."""

    lines: list[object] = field(default_factory=lambda: ["fine"])
    pause_s: float = 0.0
    """Pause between two words."""
    usage: Usage = Usage(100, 10)
    finish: Finish = Finish.STOP
    given_traits: Traits = Traits()
    requests: list[Request] = field(default_factory=list[Request])
    cut_off: int = 0
    """Number of streams closed before their end."""
    broken_after: int | None = None
    """Number of words before an exception that follows in `lines` is raised."""

    def traits(self, model: str) -> Traits:
        return self.given_traits

    def head(self, prompt: Prompt) -> bytes:
        tools = [[tool.name, tool.description, tool.parameters] for tool in prompt.tools]
        return json.dumps([prompt.model, prompt.system, tools]).encode()

    def encode(self, messages: Sequence[Message]) -> bytes:
        rows = [
            [m.role.value, m.content, [[c.id, c.name, c.arguments] for c in m.tool_calls], m.tool_call_id]
            for m in messages
        ]
        return json.dumps(rows).encode()[1:-1]

    def sent(self, number: int = -1) -> str:
        """A request as text: everything the model would read."""
        request = self.requests[number]
        tail = self.encode(request.tail).decode()
        return f"{request.head.decode()}\n{request.history.decode()}\n{tail}\n{request.recall}"

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        self.requests.append(request)
        _refuse_nonsense(json.loads(b"[" + request.history + b"]"))
        _refuse_nonsense(json.loads(b"[" + self.encode(request.tail) + b"]"))
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        line = line(request) if callable(line) else line
        ended = False
        try:
            await asyncio.sleep(0)
            if isinstance(line, Exception):
                raise line
            if isinstance(line, str):
                async for delta in self._written(line):
                    yield delta
                ended = True
                yield Answer(Message(Role.ASSISTANT, line), self.usage, self.finish)
                return
            calls = (line,) if isinstance(line, ToolCall) else tuple(line)  # type: ignore[arg-type]
            ended = True
            yield Answer(Message(Role.ASSISTANT, "", calls), self.usage, Finish.TOOLS)
        finally:
            self.cut_off += not ended

    async def _written(self, text: str) -> AsyncGenerator[Delta, None]:
        for number, word in enumerate(text.split(" ")):
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            if self.broken_after is not None and number >= self.broken_after:
                self.broken_after = None
                following = self.lines.pop(0)
                assert isinstance(following, Exception)
                raise following
            yield Delta(word if number == 0 else f" {word}")

    async def aclose(self) -> None: ...

    def choice(self, name: str = "fake/one", price: Price | None = None) -> ModelChoice:
        return ModelChoice(name, name.partition("/")[2], self, price)


def _refuse_nonsense(rows: list[list[object]]) -> None:
    waiting: list[object] = []
    for role, content, calls, call_id in rows:
        if role == "tool":
            if call_id not in waiting:
                raise ModelRefused(f"a result without a call: {call_id}")
            waiting.remove(call_id)
        elif waiting:
            raise ModelRefused(f"calls without a result: {waiting}")
        elif not content and not calls:
            raise ModelRefused("an empty message")
        waiting += [call[0] for call in calls]  # type: ignore[attr-defined]
    if waiting:
        raise ModelRefused(f"calls without a result: {waiting}")
