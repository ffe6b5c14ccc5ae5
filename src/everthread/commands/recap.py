"""What was said last in a conversation, to show somebody who comes back to it."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from everthread.domain.model import Session, Turn, TurnStatus
from everthread.domain.text_format import counted, local_time, shortened
from everthread.store.unit_of_work import UnitOfWork

EXCHANGES = 3
ASKED_CHARS_MAX = 200
ANSWERED_CHARS_MAX = 400


class Exchange(Struct, frozen=True):
    """A turn in short. Its texts are on one line each, with nothing in them that could move a cursor."""

    asked: str
    answered: str
    tools: tuple[tuple[str, int], ...] = ()
    """Each tool that was called, and how often, in the order of their first calls."""
    status: TurnStatus = TurnStatus.DONE
    """Its `in_words` belongs beside what is shown of the exchange."""


class Recap(Struct, frozen=True):
    session_id: str
    title: str
    """Empty if it has none."""
    turns: int
    active_at: float
    exchanges: tuple[Exchange, ...] = ()
    """The last ones, oldest first."""


def recap(uow: UnitOfWork, session: Session, exchanges: int = EXCHANGES) -> Recap:
    """The last exchanges of a session; the turns before them are counted and not read.

    Messages that were set aside since come on top, the last few of them: whoever wrote them still waits for an answer.
    """
    turns = _last(uow, session, exchanges) if exchanges > 0 else []
    return Recap(
        session.id,
        session.title or "",
        uow.turns.count(session),
        session.active_at,
        tuple(exchange_of(turn) for turn in turns),
    )


def _last(uow: UnitOfWork, session: Session, exchanges: int) -> list[Turn]:
    shown = uow.turns.last_visible(session, exchanges)
    turns = uow.turns.view_for_people(session, after=shown[0] - 1 if shown else 0).turns
    aside = [turn.number for turn in turns if turn.status is TurnStatus.SET_ASIDE][:-exchanges]
    return [turn for turn in turns if turn.number not in aside]


def exchange_of(turn: Turn) -> Exchange:
    return Exchange(
        shortened(turn.user_text, ASKED_CHARS_MAX),
        shortened(turn.assistant_text, ANSWERED_CHARS_MAX),
        tools_of(turn),
        turn.status,
    )


def tools_of(turn: Turn) -> tuple[tuple[str, int], ...]:
    """The tools that were called in a turn, and how often, in the order of their first calls."""
    return tuple(Counter(call.name for message in turn.messages for call in message.tool_calls).items())


def in_words(recap: Recap) -> str:
    """The recap for those who show plain text."""
    lines = [f"{counted(recap.turns, 'turn')}, last active {local_time(recap.active_at)}"]
    for exchange in recap.exchanges:
        lines.append(f"> {exchange.asked}")
        if exchange.tools:
            lines.append(f"  [{tools_in_words(exchange.tools)}]")
        if exchange.answered:
            lines.append(f"  {exchange.answered}")
        if exchange.status.in_words:
            lines.append(f"  ({exchange.status.in_words})")
    return "\n".join(lines)


def tools_in_words(tools: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in tools)
