"""What makes a long conversation short. A plugin may bring another: see the hook `context_engine`."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.model import SessionRef, Turn


class Reader(Struct, frozen=True):
    """Who reads a conversation to summarise it, and how much it can read at once."""

    name: str
    context_tokens: int


class Middle(Struct, frozen=True):
    """The part of a conversation that is to become a summary: whole turns, old bulky tool output cut down."""

    ref: SessionRef
    model: str
    """The model that the conversation is with, as people call it."""
    previous: str
    """The summary of all that came before these turns; empty if nothing did."""
    turns: tuple[Turn, ...]
    hints: tuple[str, ...] = ()
    """What memory providers want to be kept."""
    focus: str = ""
    """What the user wants to be kept above all."""


class Rollover(Struct, frozen=True):
    """A conversation has gone on in a continuation: the summary stands for the turns up to `covers_to`."""

    left: SessionRef
    entered: SessionRef
    summary: str
    covers_to: int
    turns: int
    mechanical: bool = False
    """The summary is an extract that no engine has made."""


class ContextEngine(Protocol):
    """Makes summaries. It is asked in the background, for several sessions at once, and keeps none as its own."""

    def reader(self, model: str) -> Reader:
        """Who would read a conversation with that model. Raises `EverthreadError` if nobody can."""
        ...

    async def summarise(self, middle: Middle) -> str:
        """One text in place of the previous summary and these turns. Raises `EverthreadError` if there is none."""
        ...

    async def on_rollover(self, rollover: Rollover) -> None:
        """A conversation that this process compressed has gone on. Whatever it raises is reported and no more."""
        ...
