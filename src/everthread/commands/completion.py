"""Completion of slash commands and their arguments. Runs on every key press, so it reads little."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from everthread.commands import memory
from everthread.commands.context import CommandContext
from everthread.commands.registry import COMMANDS
from everthread.domain import titles
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Session
from everthread.domain.text_format import local_time, shorten
from everthread.lifecycle.session_lookup import PREFIX_CHARS_MIN, is_resumable
from everthread.store.unit_of_work import UnitOfWork

CANDIDATES_MAX = 20
_SCANNED_MAX = 60
_TYPED_CHARS_MAX = 200
_NOTE_CHARS_MAX = 60
_SUBCOMMAND = re.compile(r"[\[|] ?([a-z]+)")


class Candidate(Struct, frozen=True):
    text: str
    """The text to insert."""
    start: int
    """Characters before the cursor that it replaces."""
    note: str = ""


async def candidates(context: CommandContext, text: str) -> Sequence[Candidate]:
    """Complete a command or its argument, most likely first. Never raises."""
    if not text.startswith("/") or len(text) > _TYPED_CHARS_MAX or "\n" in text:
        return ()
    word, space, argument = text.partition(" ")
    if not space:
        return _commands(word)[:CANDIDATES_MAX]
    try:
        return (await _arguments(context, word[1:].lower(), argument.lstrip()))[:CANDIDATES_MAX]
    except EverthreadError:
        # The command itself will report the error.
        return ()


async def _arguments(context: CommandContext, command: str, typed: str) -> list[Candidate]:
    match command:
        case "help":
            return _commands(typed)
        case "memory":
            return _with_prefix(typed, _SUBCOMMAND.findall(memory.ARGUMENTS))
        case "model":
            matching = [name for name in context.runtime.known_models() if typed.lower() in name.lower()]
            return _with_prefix(typed, matching) or [Candidate(name, len(typed)) for name in matching]
        case "resume":
            return await _resume(context, typed)
        case _:
            return []


def _commands(word: str) -> list[Candidate]:
    typed = word.removeprefix("/").lower()
    slash = "/" if word.startswith("/") else ""
    return [
        Candidate(slash + name, len(word), command.help)
        for command in COMMANDS
        for name in command.names
        if name.startswith(typed)
    ]


async def _resume(context: CommandContext, typed: str) -> list[Candidate]:
    named, by_id = await context.runtime.store.read(lambda uow: _sessions(uow, context.owner, typed))
    found = [Candidate(session.title or "", len(typed), local_time(session.active_at)) for session in named]
    return found + [
        Candidate(session.id, len(typed), shorten(session.title or "(no title)", _NOTE_CHARS_MAX)) for session in by_id
    ]


def _sessions(uow: UnitOfWork, owner: str, typed: str) -> tuple[list[Session], list[Session]]:
    """Sessions by title prefix, else by a part of the title; and sessions by id prefix."""
    named = _resumable(uow.sessions.named(owner, typed, _SCANNED_MAX))
    if typed and not named:
        wanted = titles.fold(typed)
        recent = _resumable(uow.sessions.named(owner, "", _SCANNED_MAX))
        named = [session for session in recent if wanted in titles.fold(session.title or "")]
    by_id = uow.sessions.matching(typed, CANDIDATES_MAX, owner) if len(typed) >= PREFIX_CHARS_MIN else ()
    return named, _resumable(by_id)


def _resumable(sessions: Iterable[Session]) -> list[Session]:
    return [session for session in sessions if is_resumable(session)]


def _with_prefix(typed: str, names: Iterable[str]) -> list[Candidate]:
    return [Candidate(name, len(typed)) for name in names if name.lower().startswith(typed.lower())]
