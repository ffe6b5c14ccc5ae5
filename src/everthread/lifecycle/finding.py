"""What a person calls a session: its id, the beginning of its id, or its title."""

from __future__ import annotations

from everthread.domain import titles
from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Kind, Session
from everthread.ports.store import UnitOfWork

PREFIX_CHARS_MIN = 4


def find_session(uow: UnitOfWork, text: str, *, owner: str) -> Session:
    """The owner's session that `text` names. A title finds the newest of its lineage, at its tip."""
    session = uow.sessions.get(text)
    if session is None or session.owner != owner:
        session = _by_title(uow, text, owner) or _by_prefix(uow, text, owner)
    return _still_there(session, text)


def find_session_of_any_owner(uow: UnitOfWork, text: str, *, exactly: bool = False) -> Session:
    """The same for an operator, who may name anybody's session. A title that several owners use finds none of them.

    `exactly` is for what can't be undone: a title is then that of one session, not of what became of it.
    """
    session = uow.sessions.get(text) or _by_anyones_title(uow, text, exactly) or _by_prefix(uow, text, None)
    return _still_there(session, text)


def _still_there(session: Session | None, text: str) -> Session:
    if session is None or not _is_conversation(session):
        raise NotFound(f"there is no session {text[:100]!r}; `sessions list` shows the ones there are")
    return session


def _is_conversation(session: Session) -> bool:
    return session.forgotten_seq is None and session.kind is not Kind.NOTES


def _by_anyones_title(uow: UnitOfWork, text: str, exactly: bool) -> Session | None:
    owners = sorted({session.owner for session in uow.sessions.titled(None, text)})
    matches = [found for owner in owners if (found := _by_title(uow, text, owner, exactly)) is not None]
    if len(matches) > 1:
        some = ", ".join(f"{session.id} ({session.owner})" for session in matches[:3])
        raise BadInput(f"{len(matches)} owners have a session {text!r}, among them {some}; give its id")
    return matches[0] if matches else None


def _by_title(uow: UnitOfWork, text: str, owner: str, exactly: bool = False) -> Session | None:
    try:
        wanted = titles.clean(text)
    except BadInput:
        return None
    base, number = titles.split(wanted)
    same = [s for s in uow.sessions.titled(owner, wanted) if _is_of(s, base)]
    that_one = next((s for s in same if titles.fold(s.title or "") == titles.fold(wanted)), None)
    if exactly and that_one is not None:
        return that_one
    # A bare name means the newest that carries it; a number means that very one.
    chosen = same[-1] if same and number == 1 else that_one
    return uow.sessions.tip(chosen.id) if chosen is not None else None


def _is_of(session: Session, base: str) -> bool:
    """Compared as it would be numbered, because a long base is cut to make room for its number."""
    title = session.title or ""
    return titles.fold(titles.numbered(base, titles.split(title)[1])) == titles.fold(title)


def _by_prefix(uow: UnitOfWork, text: str, owner: str | None) -> Session | None:
    if len(text) < PREFIX_CHARS_MIN:
        return None
    matches = [session for session in uow.sessions.matching(text, 50, owner) if _is_conversation(session)]
    if len(matches) > 1:
        some = ", ".join(session.id for session in matches[:3])
        raise BadInput(f"{text!r} fits {len(matches)} sessions, among them {some}; give more of the id")
    return matches[0] if matches else None
