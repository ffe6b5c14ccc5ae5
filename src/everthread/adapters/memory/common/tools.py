"""The tools that a memory service brings for the model: each is asked in words, or takes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from everthread.domain.errors import ToolFailed


class Question(Struct, frozen=True):
    name: str
    description: str
    argument: str = ""
    """What the words are called; empty if it takes none."""
    meaning: str = "In plain words."

    @property
    def schema(self) -> Mapping[str, Any]:
        words = {self.argument: {"type": "string", "description": self.meaning}} if self.argument else {}
        parameters = {"type": "object", "properties": words, "required": list(words)}
        return {"name": self.name, "description": self.description, "parameters": parameters}


class Questions:
    def __init__(self, provider: str, questions: Sequence[Question], *, chars_max: int) -> None:
        self._provider = provider
        self._questions = {question.name: question for question in questions}
        self._chars_max = chars_max

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [question.schema for question in self._questions.values()]

    def words(self, name: str, args: Mapping[str, Any]) -> str:
        """What is asked, cut to what a service takes. Raises `LookupError` for a tool that is not there, `ToolFailed`
        for one that is asked nothing."""
        question = self._questions.get(name)
        if question is None:
            raise LookupError(f"{self._provider} has no tool {name!r}")
        words = str(args.get(question.argument, "")).strip()[: self._chars_max] if question.argument else ""
        if question.argument and not words:
            raise ToolFailed(f"{question.argument} is empty; say what to look for")
        return words


def listed(lines: Iterable[str], otherwise: str = "Nothing was found.") -> str:
    return "\n".join(f"- {line}" for line in lines) or otherwise
