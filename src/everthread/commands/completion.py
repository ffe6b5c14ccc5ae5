"""What a command that is being typed may go on with. Asked for with every key, so it looks at little."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from everthread.commands import memory as notes
from everthread.commands.context import CommandContext
from everthread.commands.registry import COMMANDS
from everthread.domain import titles
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Session
from everthread.domain.text_format import local_time, shortened
from everthread.lifecycle.session_lookup import PREFIX_CHARS_MIN, is_to_go_to
from everthread.store.unit_of_work import UnitOfWork

CANDIDATES_MAX = 20
_LOOKED_AT_MAX = 60
_TYPED_CHARS_MAX = 200
_NOTE_CHARS_MAX = 60
_SUBCOMMAND = re.compile(r"[\[|] ?([a-z]+)")


class Candidate(Struct, frozen=True):
    text: str
    """What is put in."""
    start: int
    """How many characters before the end of what was typed it takes the place of."""
    note: str = ""


async def candidates(desk: CommandContext, text: str) -> Sequence[Candidate]:
    """What could stand at the end of the text, the likeliest first; nothing if it is no command. Raises nothing."""
    if not text.startswith("/") or len(text) > _TYPED_CHARS_MAX or "\n" in text:
        return ()
    word, space, argument = text.partition(" ")
    if not space:
        return _commands(word)[:CANDIDATES_MAX]
    complete = _ARGUMENTS.get(word[1:].lower())
    if complete is None:
        return ()
    try:
        return (await complete(desk, argument.lstrip()))[:CANDIDATES_MAX]
    except EverthreadError:
        # Whoever types on will be told when the command is carried out.
        return ()


def _commands(word: str) -> list[Candidate]:
    typed = word.removeprefix("/").lower()
    slash = "/" if word.startswith("/") else ""
    return [
        Candidate(slash + name, len(word), command.help)
        for command in COMMANDS
        for name in (command.name, *command.aliases)
        if name.startswith(typed)
    ]


async def _help(desk: CommandContext, typed: str) -> list[Candidate]:
    return _commands(typed)


async def _memory(desk: CommandContext, typed: str) -> list[Candidate]:
    return _beginning(typed, _SUBCOMMAND.findall(notes.USAGE))


async def _model(desk: CommandContext, typed: str) -> list[Candidate]:
    within = [name for name in desk.known_models if typed.lower() in name.lower()]
    return _beginning(typed, within) or [Candidate(name, len(typed)) for name in within]


async def _resume(desk: CommandContext, typed: str) -> list[Candidate]:
    named, by_id = await desk.store.read(lambda uow: _sessions(uow, desk.owner, typed))
    found = [Candidate(session.title or "", len(typed), local_time(session.active_at)) for session in named]
    return found + [
        Candidate(session.id, len(typed), shortened(session.title or "(no title)", _NOTE_CHARS_MAX))
        for session in by_id
    ]


def _sessions(uow: UnitOfWork, owner: str, typed: str) -> tuple[list[Session], list[Session]]:
    """The sessions whose titles begin so, or else have it in them; and those whose ids begin so."""
    named = _places(uow.sessions.named(owner, typed, _LOOKED_AT_MAX))
    if typed and not named:
        wanted = titles.fold(typed)
        lately = _places(uow.sessions.named(owner, "", _LOOKED_AT_MAX))
        named = [session for session in lately if wanted in titles.fold(session.title or "")]
    by_id = uow.sessions.matching(typed, CANDIDATES_MAX, owner) if len(typed) >= PREFIX_CHARS_MIN else ()
    return named, _places(by_id)


def _places(sessions: Iterable[Session]) -> list[Session]:
    return [session for session in sessions if is_to_go_to(session)]


def _beginning(typed: str, names: Iterable[str]) -> list[Candidate]:
    return [Candidate(name, len(typed)) for name in names if name.lower().startswith(typed.lower())]


_ARGUMENTS: Mapping[str, Callable[[CommandContext, str], Awaitable[list[Candidate]]]] = {
    "help": _help,
    "memory": _memory,
    "model": _model,
    "resume": _resume,
}
