"""Our sessions, people and turns in Honcho's names and messages, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, UnsetType

from everthread.adapters.memory.common.encoding import PAUSE, decoded, encoded, named, split
from everthread.adapters.memory.honcho.client import Conclusion, Home, Said, Saying
from everthread.domain.model import FORGOTTEN, SessionRef
from everthread.ports.memory import RecallItem

CONTENT_CHARS_MAX = 25_000

_PERSON, _AGENT, _SESSION, _NOTE = "u", "a", "s", "n"
_UNDONE = "undone"


def person(owner: str) -> str:
    """The peer that is the person."""
    return named(_PERSON, encoded(owner))


def agent(owner: str) -> str:
    """The peer that answers this person. Everybody has their own: what one is told is not what another knows."""
    return named(_AGENT, encoded(owner))


def peers_of(owner: str) -> dict[str, dict[str, bool]]:
    """Who takes part in a session of theirs. Conclusions are drawn of the person, not of the agent."""
    return {person(owner): {}, agent(owner): {"observe_me": False, "observe_others": False}}


def session_name(session_id: str) -> str:
    return named(_SESSION, encoded(session_id))


def note_name(session_id: str, note_id: str) -> str:
    """Each note is at home in a session of its own, so that its conclusions can be found and taken back."""
    return named(_NOTE, encoded(session_id), encoded(note_id))


def in_round(name: str, round: int) -> str:
    """The name for the next time, once the one before was deleted: Honcho takes none a second time."""
    return named(name, f"r{round}") if round else name


def our_session(name: str | None) -> str:
    """The session of ours that something there comes from, as far as its name tells."""
    parts = (name or "").split(PAUSE)
    return decoded(parts[1]) or "" if len(parts) > 1 and parts[0] in (_SESSION, _NOTE) else ""


def sayings(
    sides: Sequence[tuple[str, str]], *, ref: SessionRef, seq: int, kind: str, at: float | None, turn: int | None = None
) -> tuple[Saying, ...]:
    """An entry as messages: what each peer said, in pieces. Each says which part of which entry it is."""
    origin: dict[str, Any] = {"session": ref.session_id, "owner": ref.owner, "seq": seq, "kind": kind}
    if turn is not None:
        origin["turn"] = turn
    parts = ((peer, piece) for peer, text in sides for piece in split(text, CONTENT_CHARS_MAX))
    return tuple(
        Saying(peer, piece, {**origin, "part": number}, _written(at)) for number, (peer, piece) in enumerate(parts)
    )


def missing(sayings: Iterable[Saying], there: Iterable[Said]) -> tuple[Saying, ...]:
    """Those that are not there yet."""
    known = {_place(message) for message in there}
    return tuple(saying for saying in sayings if _place(saying) not in known)


def repeated(messages: Sequence[Said]) -> tuple[Said, ...]:
    """Those that say the same part of the same entry as one before them, and are not marked yet."""
    first: dict[tuple[Any, ...], Said] = {}
    for message in messages:
        first.setdefault(_place(message), message)
    return tuple(
        message for message in messages if first[_place(message)] is not message and not message.metadata.get(_UNDONE)
    )


def undone(message: Said) -> dict[str, Any]:
    return {**message.metadata, _UNDONE: True}


def again(message: Said, fact: str) -> Saying:
    """The message once more, without the words of a fact."""
    return Saying(
        message.peer_id, message.content.replace(fact, FORGOTTEN), message.metadata, message.created_at or UNSET
    )


def opened_with(home: Home, ref: SessionRef, **more: str) -> dict[str, Any] | None:
    """What a session's metadata must be; None if it is that already. What was known stays, a parent among it."""
    wanted: dict[str, Any] = {"session": ref.session_id, "owner": ref.owner}
    wanted |= {name: value for name, value in more.items() if value}
    return None if wanted.items() <= home.metadata.items() else {**home.metadata, **wanted}


def recalled(
    conclusions: Sequence[Conclusion], messages: Sequence[Said], owner: str, limit: int
) -> tuple[RecallItem, ...]:
    """The best of both in turns; nothing of another person's, nothing that was undone, each message once."""
    told = [
        RecallItem(one.content, session_id=our_session(one.session_id))
        for one in conclusions
        if one.observed_id == person(owner)
    ]
    own = {_place(one): one for one in reversed(messages) if one.peer_id in peers_of(owner)}
    said = [_said(one, owner) for one in messages if own.get(_place(one)) is one and not one.metadata.get(_UNDONE)]
    mixed = [item for pair in _paired(said, told) for item in pair]
    return tuple(_scored(item, place) for place, item in enumerate(mixed[:limit]))


def _paired(first: Sequence[RecallItem], second: Sequence[RecallItem]) -> Iterable[tuple[RecallItem, ...]]:
    for place in range(max(len(first), len(second))):
        yield (*first[place : place + 1], *second[place : place + 1])


def _said(message: Said, owner: str) -> RecallItem:
    who = "user" if message.peer_id == person(owner) else "assistant"
    session, turn = message.metadata.get("session"), message.metadata.get("turn")
    return RecallItem(
        f"{who}: {message.content}",
        session_id=session if isinstance(session, str) else our_session(message.session_id),
        turn=turn if isinstance(turn, int) else None,
        at=_read(message.created_at),
    )


def _scored(item: RecallItem, place: int) -> RecallItem:
    """Honcho gives an order, and no numbers."""
    return RecallItem(item.text, 1 / (place + 1), "", item.session_id, item.turn, item.at)


def _place(message: Saying | Said) -> tuple[Any, ...]:
    """Which part of which entry a message is. One that does not say is not ours, and like no other."""
    found = tuple(message.metadata.get(name) for name in ("session", "seq", "part"))
    return found if None not in found else (getattr(message, "id", ""),)


def _written(at: float | None) -> str | UnsetType:
    return datetime.fromtimestamp(at, UTC).isoformat() if at is not None else UNSET


def _read(at: str) -> float | None:
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return None
