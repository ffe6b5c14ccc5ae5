"""Hand-made rows of Hermes and their expected translations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from everthread.domain.model import Role, SessionKey
from everthread.hermes_import.convert import ConvertedSession, Converter, Destination
from everthread.hermes_import.lineage import order_by_parent
from everthread.hermes_import.rows import MessageRow, SessionRow

START = 1_700_000_000.0
LATER = START + 1_000_000
KEY = SessionKey.parse("agent:main:cli:dm:hermes")


def session(name: str, parent: str | None = None, **more: Any) -> SessionRow:
    given = {"started_at": START, "ended_at": None, "end_reason": None, "title": None, "marks": {}} | more
    return SessionRow(name, given.pop("source", "cli"), given.pop("user_id", None), parent, **given)


class Rows:
    """Create rows in sequence."""

    def __init__(self, at: float = START) -> None:
        self.rows: list[MessageRow] = []
        self._at = at

    def say(self, role: str, content: str, **more: Any) -> Rows:
        number = len(self.rows) + 1
        finish = "stop" if role == "assistant" and "tool_calls" not in more else None
        more = {"finish_reason": finish} | more
        self.rows.append(MessageRow(number, role, content, self._at + number, **more))
        return self

    def talk(self, *words: str, **more: Any) -> Rows:
        for word in words:
            self.say("user", word, **more).say("assistant", f"You said: {word}", **more)
        return self


def compacted(rows: Iterable[MessageRow]) -> list[MessageRow]:
    """The rows after compaction."""
    return [replace(row, active=False, compacted=True) for row in rows]


def translated(
    *given: tuple[SessionRow, list[MessageRow]], now: float = LATER
) -> tuple[dict[str, ConvertedSession], Converter]:
    rows = {row.id: messages for row, messages in given}
    members = order_by_parent(row for row, _ in given)
    waiting = {member.parent: 0 for member in members if member.parent}
    for member in members:
        if member.parent:
            waiting[member.parent] += 1
    translator = Converter(lambda _: Destination(KEY, "me"), now, waiting)
    found = [arriving for member in members for arriving in translator.session(member, rows[member.row.id])]
    return {arriving.line.id: arriving for arriving in found}, translator


def words(arriving: ConvertedSession) -> list[str]:
    return [message.content for turn in arriving.turns for message in turn.messages if message.role is Role.USER]
