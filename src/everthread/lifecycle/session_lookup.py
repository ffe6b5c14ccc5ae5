"""Find a session by its id, a prefix of its id, or its title."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.domain import titles
from everthread.domain.errors import Ambiguous, BadInput, NoSuchSession
from everthread.domain.model import Session, SessionKind
from everthread.store.unit_of_work import UnitOfWork

PREFIX_CHARS_MIN = 4
NEAR_MAX = 3
_NAMED_MAX = 300
_SIMILARITY_MIN = 0.6


def find_session(uow: UnitOfWork, text: str, *, owner: str) -> Session:
    """Return the owner's session that `text` names. A title finds the newest session of that title, at its tip."""
    session = uow.sessions.get(text)
    if session is None or session.owner != owner:
        session = _by_title(uow, text, owner) or _by_prefix(uow, text, owner)
    return _existing_session(uow, session, text, owner)


def find_session_of_any_owner(uow: UnitOfWork, text: str, *, exactly: bool = False) -> Session:
    """Return the session of any owner that `text` names, for an operator.

    Raises `Ambiguous` for a title that several owners use. With `exactly`, for operations that can't be undone, a title
    finds the session with that very title, not a later one of its lineage.
    """
    session = uow.sessions.get(text) or _by_title_of_any_owner(uow, text, exactly) or _by_prefix(uow, text, None)
    return _existing_session(uow, session, text, None)


def nearest(uow: UnitOfWork, text: str, *, owner: str | None) -> tuple[Session, ...]:
    """Return the recent sessions of the owner with the most similar titles, most similar first."""
    if not text.strip() or len(text) > titles.TITLE_CHARS_MAX:
        return ()
    named = {session.id: session for session in uow.sessions.named(owner, "", _NAMED_MAX) if is_resumable(session)}
    wanted, folded = titles.fold(text), {key: titles.fold(session.title or "") for key, session in named.items()}
    # A part of a title has a low similarity ratio, but is a likely match.
    containing = [key for key, title in folded.items() if title.startswith(wanted)]
    containing += [key for key, title in folded.items() if len(wanted) >= PREFIX_CHARS_MIN and wanted in title]
    import difflib  # noqa: PLC0415 - only for what was not found

    matcher = difflib.SequenceMatcher(b=wanted, autojunk=False)
    similar: list[tuple[float, str]] = []
    for key, title in folded.items():
        matcher.set_seq1(title)
        # The full comparison is slow; the quick ratios are upper bounds and exclude most titles.
        if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= _SIMILARITY_MIN <= (ratio := matcher.ratio()):
            similar.append((ratio, key))
    found = dict.fromkeys([key for _, key in sorted(similar, reverse=True)] + containing)
    return tuple(named[key] for key in list(found)[:NEAR_MAX])


def _existing_session(uow: UnitOfWork, session: Session | None, text: str, owner: str | None) -> Session:
    if session is None or not _is_conversation(session):
        near = [(found.id, found.title or "") for found in nearest(uow, text, owner=owner)]
        hint = f"did you mean {' or '.join(repr(title) for _, title in near)}? " if near else ""
        raise NoSuchSession(f"there is no session {text[:100]!r}; {hint}`sessions list` shows all", near)
    return session


def _is_conversation(session: Session) -> bool:
    return session.forgotten_seq is None and session.kind is not SessionKind.NOTES


def is_resumable(session: Session) -> bool:
    """Return True if a user can continue a conversation in the session."""
    return _is_conversation(session) and session.kind is SessionKind.CHAT and session.end_reason != "compressed"


def _by_title_of_any_owner(uow: UnitOfWork, text: str, exactly: bool) -> Session | None:
    owners = sorted({session.owner for session in uow.sessions.titled(None, text)})
    matches = [found for owner in owners if (found := _by_title(uow, text, owner, exactly)) is not None]
    if len(matches) > 1:
        some = ", ".join(f"{session.id} ({session.owner})" for session in matches[:3])
        raise Ambiguous(
            f"{len(matches)} owners have a session {text!r}, such as {some}; give its id", _ids_and_titles(matches)
        )
    return matches[0] if matches else None


def _by_title(uow: UnitOfWork, text: str, owner: str, exactly: bool = False) -> Session | None:
    try:
        wanted = titles.clean(text)
    except BadInput:
        return None
    base, number = titles.split(wanted)
    same = [s for s in uow.sessions.titled(owner, wanted) if _has_base(s, base)]
    exact = next((s for s in same if titles.fold(s.title or "") == titles.fold(wanted)), None)
    if exactly and exact is not None:
        return exact
    # A title without a number means the newest session of that title.
    chosen = same[-1] if same and number == 1 else exact
    return uow.sessions.tip(chosen.id) if chosen is not None else None


def _has_base(session: Session, base: str) -> bool:
    """Compare with the numbered form of `base`, because a long base is cut to make room for its number."""
    title = session.title or ""
    return titles.fold(titles.numbered(base, titles.split(title)[1])) == titles.fold(title)


def _by_prefix(uow: UnitOfWork, text: str, owner: str | None) -> Session | None:
    if len(text) < PREFIX_CHARS_MIN:
        return None
    matches = [session for session in uow.sessions.matching(text, 50, owner) if _is_conversation(session)]
    if len(matches) > 1:
        some = ", ".join(f"{s.id} ({s.title!r})" if s.title else s.id for s in matches[:3])
        raise Ambiguous(
            f"{text!r} matches {len(matches)} sessions, such as {some}; give more of the id", _ids_and_titles(matches)
        )
    return matches[0] if matches else None


def _ids_and_titles(sessions: Sequence[Session]) -> list[tuple[str, str]]:
    return [(session.id, session.title or "") for session in sessions]
