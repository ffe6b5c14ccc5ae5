"""Tools of a memory service for the model: each takes one text argument, or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from everthread.domain.errors import ToolFailed


class TextTool(Struct, frozen=True):
    name: str
    description: str
    argument: str = ""
    """Name of the text argument; empty if the tool takes none."""
    meaning: str = "In plain words."

    @property
    def schema(self) -> Mapping[str, Any]:
        properties = {self.argument: {"type": "string", "description": self.meaning}} if self.argument else {}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"name": self.name, "description": self.description, "parameters": parameters}


class TextTools:
    def __init__(self, provider: str, tools: Sequence[TextTool], *, chars_max: int) -> None:
        self._provider = provider
        self._tools = {tool.name: tool for tool in tools}
        self._chars_max = chars_max

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [tool.schema for tool in self._tools.values()]

    def argument(self, name: str, args: Mapping[str, Any]) -> str:
        """Return the text argument of a call, cut to `chars_max`.

        Raises `LookupError` for an unknown tool, and `ToolFailed` if the argument is empty.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise LookupError(f"{self._provider} has no tool {name!r}")
        text = str(args.get(tool.argument, "")).strip()[: self._chars_max] if tool.argument else ""
        if tool.argument and not text:
            raise ToolFailed(f"{tool.argument} is empty; say what to look for")
        return text


def bullet_list(lines: Iterable[str], otherwise: str = "Nothing was found.") -> str:
    return "\n".join(f"- {line}" for line in lines) or otherwise
