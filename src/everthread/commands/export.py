"""`/export`: write a session as Markdown."""

from __future__ import annotations

import re

from everthread.commands.context import (
    NO_SESSION,
    CommandContext,
    CommandResult,
    Document,
    current_session,
    fail,
    label_of,
)
from everthread.commands.recap import count_tools, format_tools
from everthread.domain.model import Role, Session, Turn, TurnStatus
from everthread.domain.text_format import local_time, one_line, pluralize
from everthread.store.unit_of_work import UnitOfWork

CHARS_MAX = 20_000_000
NAME_CHARS_MAX = 1_000
_TURNS_PER_READ = 50
_UNSAFE = re.compile(r"[^\w.-]+")
_STATUS = {
    TurnStatus.INTERRUPTED: "This answer was interrupted.",
    TurnStatus.LATE: "This answer was finished after the session was left.",
    TurnStatus.SET_ASIDE: f"({TurnStatus.SET_ASIDE.label})",
}


async def export(context: CommandContext, name: str) -> CommandResult:
    session = await current_session(context)
    if session is None:
        return fail(NO_SESSION)
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        return fail("Invalid file name. Without one, /export chooses it.")
    turns, text = await context.runtime.store.read(lambda uow: markdown(uow, session))
    if not turns:
        return fail("There is nothing to export yet. Send a message first.")
    document = Document(name or _file_name(session), text)
    return CommandResult(
        f"Exported {label_of(session)}, {pluralize(turns, 'turn')}, as Markdown: {document.name}", document=document
    )


def markdown(uow: UnitOfWork, session: Session, chars_max: int = CHARS_MAX) -> tuple[int, str]:
    """The number of turns and the text of a session, including compressed turns and those before a branch."""
    # Without its floor a session shows the original turns instead of their summary.
    whole = session.replace(floor=0, summary_id=None)
    parts = [f"# {one_line(session.title or 'Session')}\n", f"Session {session.id}.\n"]
    turns, chars = 0, 0
    for after in range(0, session.last_turn, _TURNS_PER_READ):
        for turn in uow.turns.view_with_set_aside(whole, after=after, up_to=after + _TURNS_PER_READ).turns:
            part = _turn(turn)
            chars += len(part)
            if chars > chars_max:
                parts.append(f"*Cut off at {chars_max} characters.*\n")
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
    if tools := count_tools(turn):
        lines.append(f"*Tools used: {one_line(format_tools(tools))}*\n")
    if turn.status in _STATUS:
        lines.append(f"*{_STATUS[turn.status]}*\n")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def _file_name(session: Session) -> str:
    return f"{_UNSAFE.sub('-', session.title or '').strip('-.').lower()[:80] or session.id}.md"
