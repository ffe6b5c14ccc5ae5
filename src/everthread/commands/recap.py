"""The last turns of a session, shown when a user resumes it."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from everthread.domain.model import Session, Turn, TurnStatus
from everthread.domain.text_format import shorten
from everthread.store.unit_of_work import UnitOfWork

RECAP_TURNS = 3
QUESTION_CHARS_MAX = 200
ANSWER_CHARS_MAX = 400


class RecapTurn(Struct, frozen=True):
    """A shortened turn. Each text is one line without control characters."""

    question: str
    answer: str
    tools: tuple[tuple[str, int], ...] = ()
    """Called tools with their number of calls, in the order of the first calls."""
    status: TurnStatus = TurnStatus.DONE


class Recap(Struct, frozen=True):
    session_id: str
    title: str
    """Empty if there is none."""
    turns: int
    active_at: float
    last_turns: tuple[RecapTurn, ...] = ()
    """Oldest first."""


def recap(uow: UnitOfWork, session: Session, turns: int = RECAP_TURNS) -> Recap:
    """Read the last turns of a session and count the others.

    Unanswered messages since then are added, up to the same number: their author still waits for an answer.
    """
    last = _last_turns(uow, session, turns) if turns > 0 else []
    return Recap(
        session.id,
        session.title or "",
        uow.turns.count(session),
        session.active_at,
        tuple(summarize_turn(turn) for turn in last),
    )


def _last_turns(uow: UnitOfWork, session: Session, count: int) -> list[Turn]:
    numbers = uow.turns.last_visible(session, count)
    turns = uow.turns.view_with_set_aside(session, after=numbers[0] - 1 if numbers else 0).turns
    unanswered = [turn.number for turn in turns if turn.status is TurnStatus.SET_ASIDE][:-count]
    return [turn for turn in turns if turn.number not in unanswered]


def summarize_turn(turn: Turn) -> RecapTurn:
    return RecapTurn(
        shorten(turn.user_text, QUESTION_CHARS_MAX),
        shorten(turn.assistant_text, ANSWER_CHARS_MAX),
        count_tools(turn),
        turn.status,
    )


def count_tools(turn: Turn) -> tuple[tuple[str, int], ...]:
    """Tools called in a turn with their number of calls, in the order of the first calls."""
    return tuple(Counter(call.name for message in turn.messages for call in message.tool_calls).items())


def format_tools(tools: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in tools)
