"""Context engines summarise long conversations. A plugin may provide one through the hook `context_engine`.

The use of an engine is tested in tests/unit/agent/compression.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.model import SessionRef, Turn


class Reader(Struct, frozen=True):
    """The model that summarises, and the size of its context."""

    name: str
    context_tokens: int


class Middle(Struct, frozen=True):
    """The part of a conversation to summarise: whole turns, with old and large tool output shortened."""

    ref: SessionRef
    model: str
    """The configured name of the conversation's model."""
    previous: str
    """The summary of everything before these turns; empty if there is none."""
    turns: tuple[Turn, ...]
    hints: tuple[str, ...] = ()
    """Text that memory providers want to keep."""
    focus: str = ""
    """The topic that the user wants to keep above all."""


class Rollover(Struct, frozen=True):
    """A finished compression: in the continuation, the summary replaces the turns up to `covers_to`."""

    left: SessionRef
    entered: SessionRef
    summary: str
    covers_to: int
    turns: int
    mechanical: bool = False
    """The summary is a plain extract, made without an engine."""


class ContextEngine(Protocol):
    """Makes summaries. Called in the background for several sessions at once; keeps no current session."""

    def reader(self, model: str) -> Reader:
        """Return the reader for a conversation with that model. Raises `EverthreadError` if there is none."""
        ...

    async def summarise(self, middle: Middle) -> str:
        """Return one text that replaces the previous summary and these turns. Raises `EverthreadError` on failure."""
        ...

    async def on_rollover(self, rollover: Rollover) -> None:
        """Note that this process compressed a conversation. Errors are reported and otherwise ignored."""
        ...
