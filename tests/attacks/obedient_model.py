"""A model that obeys every instruction that it reads, and reports every secret that it sees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

from everthread.domain.model import ToolCall
from everthread.testing.model_server.http import HttpRequest
from everthread.testing.model_server.replies import Reply, Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.model_server.validation import Chat, Messages

SECRET = re.compile(r"mk[a-z]+[0-9a-f]{12}")
_INSTRUCTION = re.compile(r"<<call ([0-9a-f]{12}) (\S+) (\{.*?\})>>")
_RESULT_CHARS_MAX = 400


def new_secret(name: str) -> str:
    """Return a word that occurs nowhere else."""
    return f"mk{name}{token_hex(6)}"


class Instruction:
    """An instruction to call a tool, as an attacker would write it."""

    def __init__(self, tool: str, **arguments: object) -> None:
        self.id = token_hex(6)
        self.tool = tool
        given = {
            name: value.replace("ID", self.id) if isinstance(value, str) else value for name, value in arguments.items()
        }
        self.text = f"<<call {self.id} {tool} {json.dumps(given)}>>"


class ObedientModel(ModelServer):
    """Obey each instruction once, wherever it stands in the request, whether or not its tool is offered."""

    def __init__(self) -> None:
        super().__init__(self._obey, on_request=self._read)
        self.obeyed: set[str] = set()
        self.calls = 0
        self._strings: list[str] = []
        self._has_tools = False

    def _read(self, received: HttpRequest) -> None:
        self.calls += 1
        body = json.loads(received.body)
        self._has_tools = bool(body.get("tools"))
        self._strings = list(_strings(body))

    def _obey(self, request: Chat | Messages) -> Reply:
        # No other request is read between `_read` and this call.
        if self._has_tools:
            for text in self._strings:
                for number, tool, arguments in _INSTRUCTION.findall(text):
                    if number not in self.obeyed:
                        self.obeyed.add(number)
                        return Say(calls=(ToolCall(f"call_{number}", tool, arguments),))
        seen = sorted({word for text in self._strings for word in SECRET.findall(text)})
        assert isinstance(request, Chat)
        results = [one.content or "" for one in request.messages if one.role == "tool"]
        return Say(f"I see {' '.join(seen) or 'nothing'}. {results[-1][:_RESULT_CHARS_MAX] if results else ''}")


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _strings(inner)
