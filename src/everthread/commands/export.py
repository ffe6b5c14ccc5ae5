"""`/export`: a conversation as Markdown, to be read outside of it."""

from __future__ import annotations

import re

from everthread.commands.context import (
    NONE_YET,
    CommandContext,
    CommandResult,
    Document,
    name_of,
    refused,
    session_here,
)
from everthread.commands.recap import tools_in_words, tools_of
from everthread.domain.model import Role, Session, Turn, TurnStatus
from everthread.domain.text_format import counted, local_time, one_line
from everthread.store.unit_of_work import UnitOfWork

CHARS_MAX = 20_000_000
NAME_CHARS_MAX = 1_000
_TURNS_AT_ONCE = 50
_UNSAFE = re.compile(r"[^\w.-]+")
_STATUS = {
    TurnStatus.INTERRUPTED: "This answer was interrupted.",
    TurnStatus.LATE: "This answer came after the conversation had been left.",
    TurnStatus.SET_ASIDE: f"({TurnStatus.SET_ASIDE.in_words})",
}


async def export(desk: CommandContext, name: str) -> CommandResult:
    session = await session_here(desk)
    if session is None:
        return refused(NONE_YET)
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        return refused("That is no name for a file; /export alone chooses one.")
    turns, text = await desk.store.read(lambda uow: markdown(uow, session))
    if not turns:
        return refused("There is nothing to export yet; say something first.")
    document = Document(name or _named_after(session), text)
    return CommandResult(
        f"{name_of(session)}, {counted(turns, 'turn')}, as Markdown: {document.name}", document=document
    )


def markdown(uow: UnitOfWork, session: Session, chars_max: int = CHARS_MAX) -> tuple[int, str]:
    """The whole conversation, with what was compressed or said before a branch; how many turns, and the text."""
    # Without its floor a session shows the turns themselves, which are still there, in place of their summary.
    whole = session.but(floor=0, summary_id=None)
    parts = [f"# {one_line(session.title or 'Conversation')}\n", f"Conversation {session.id}.\n"]
    turns, chars = 0, 0
    for after in range(0, session.last_turn, _TURNS_AT_ONCE):
        for turn in uow.turns.view_for_people(whole, after=after, up_to=after + _TURNS_AT_ONCE).turns:
            part = _turn(turn)
            chars += len(part)
            if chars > chars_max:
                parts.append(f"*Cut here, at {chars_max} characters.*\n")
                return turns, "\n".join(parts)
            parts.append(part)
            turns += 1
    return turns, "\n".join(parts)


def _turn(turn: Turn) -> str:
    lines = [f"## {local_time(turn.at)}\n"]
    for message in turn.messages:
        if message.role in (Role.USER, Role.ASSISTANT) and message.content.strip():
            who = "You" if message.role is Role.USER else "Everthread"
            lines.append(f"**{who}:**\n\n{_printable(message.content).strip()}\n")
    if tools := tools_of(turn):
        lines.append(f"*Tools used: {one_line(tools_in_words(tools))}*\n")
    if turn.status in _STATUS:
        lines.append(f"*{_STATUS[turn.status]}*\n")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """The text with nothing in it that moves a cursor when the file is shown on a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def _named_after(session: Session) -> str:
    return f"{_UNSAFE.sub('-', session.title or '').strip('-.').lower()[:80] or session.id}.md"
