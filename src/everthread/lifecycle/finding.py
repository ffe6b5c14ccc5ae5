"""What a person calls a session: its id, the beginning of its id, or its title."""

from __future__ import annotations

from everthread.domain import titles
from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Session
from everthread.ports.store import UnitOfWork

PREFIX_CHARS_MIN = 4


def find_session(uow: UnitOfWork, text: str, *, owner: str) -> Session:
    """The owner's session that `text` names. A title finds the newest of its lineage, at its tip."""
    session = uow.sessions.get(text)
    if session is None or session.owner != owner:
        session = _by_title(uow, text, owner) or _by_prefix(uow, text, owner)
    if session is None or session.forgotten_seq is not None:
        raise NotFound(f"there is no session {text[:100]!r}; `sessions list` shows the ones there are")
    return session


def _by_title(uow: UnitOfWork, text: str, owner: str) -> Session | None:
    try:
        wanted = titles.clean(text)
    except BadInput:
        return None
    base, number = titles.split(wanted)
    same = [s for s in uow.sessions.titled(owner, wanted) if _is_of(s, base)]
    # A bare name means the newest that carries it; a number means that very one.
    chosen = (
        same[-1]
        if same and number == 1
        else next((s for s in same if titles.fold(s.title or "") == titles.fold(wanted)), None)
    )
    return uow.sessions.tip(chosen.id) if chosen is not None else None


def _is_of(session: Session, base: str) -> bool:
    return titles.fold(titles.split(session.title or "")[0]) == titles.fold(base)


def _by_prefix(uow: UnitOfWork, text: str, owner: str) -> Session | None:
    if len(text) < PREFIX_CHARS_MIN:
        return None
    matches = [session for session in uow.sessions.matching(text, 50) if session.owner == owner]
    if len(matches) > 1:
        some = ", ".join(session.id for session in matches[:3])
        raise BadInput(f"{text!r} fits {len(matches)} sessions, among them {some}; give more of the id")
    return matches[0] if matches else None
