"""Asking the last thing again: the turn is taken back and its words come in once more, in one transaction."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.boundary import Rewind
from everthread.domain.errors import BadInput, Busy
from everthread.domain.model import FORGOTTEN, Inbound, InboxRow, Session, SessionKey
from everthread.lifecycle.crossing import Crossing, Setting, cross
from everthread.ports.store import UnitOfWork


class AskedAgain(Struct, frozen=True):
    """What was taken back, and the message that waits now. There is none if the crossing was refused."""

    crossing: Crossing
    row: InboxRow | None = None


def ask_again(uow: UnitOfWork, key: SessionKey, owner: str, setting: Setting, user: str = "") -> AskedAgain:
    """Take back the running turn, or else the last one, and let what was said in it wait to be answered.

    A branch may ask again what was said before it: its parent keeps that turn.
    """
    ref = uow.sessions.ref(key)
    session = uow.sessions.get(ref.session_id) if ref else None
    running = uow.slots.live(session.id) if session and session.owner == owner else None
    if running is not None and running.ref.key != key:
        raise Busy("the answer is being written for somebody else in this conversation; wait for it")
    text = _last_words(uow, session) if session else ""
    # Checked here that the session is the owner's.
    crossing = cross(uow, key, Rewind(1), owner, setting)
    if crossing.refusal is not None:
        return AskedAgain(crossing)
    if not text.strip() or text.strip() == FORGOTTEN:
        raise BadInput("what was said last was forgotten and can't be asked again; say it in new words")
    row, _ = uow.inbox.accept(Inbound(key, owner, text, user=user), setting.now)
    return AskedAgain(crossing, row)


def _last_words(uow: UnitOfWork, session: Session) -> str:
    running = uow.slots.live(session.id)
    if running is not None:
        return "\n".join(row.inbound.text for row in uow.inbox.of_turn(running.ref.key, running.turn_id))
    for number in uow.turns.last_visible(session, 1):
        return "\n".join(turn.user_text for turn in uow.turns.view(session, after=number - 1, up_to=number).turns)
    return ""
