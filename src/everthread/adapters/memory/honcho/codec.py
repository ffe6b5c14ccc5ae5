"""Our sessions, owners and turns as names and messages of Honcho, and back. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from everthread.adapters.memory.common.encoding import SEPARATOR, decode_id, encode_id, join_ids, split_text
from everthread.adapters.memory.honcho.client import Conclusion, HonchoMessage, HonchoSession, NewMessage
from everthread.domain.model import FORGOTTEN, SessionRef
from everthread.ports.memory import RecallItem

CONTENT_CHARS_MAX = 25_000

_USER, _AGENT, _SESSION, _NOTE = "u", "a", "s", "n"
_UNDONE = "undone"


def user_peer(owner: str) -> str:
    """Return the peer of an owner."""
    return join_ids(_USER, encode_id(owner))


def agent_peer(owner: str) -> str:
    """Return the peer of the agent that talks to an owner. Each owner has a separate one: owners share no memory."""
    return join_ids(_AGENT, encode_id(owner))


def session_peers(owner: str) -> dict[str, dict[str, bool]]:
    """Return the peers of an owner's session. Honcho draws conclusions about the user, not about the agent."""
    return {user_peer(owner): {}, agent_peer(owner): {"observe_me": False, "observe_others": False}}


def session_name(session_id: str) -> str:
    return join_ids(_SESSION, encode_id(session_id))


def note_name(session_id: str, note_id: str) -> str:
    """Name the session of a note. Each note has one, so that its conclusions can be listed and deleted."""
    return join_ids(_NOTE, encode_id(session_id), encode_id(note_id))


def numbered_name(name: str, round: int) -> str:
    """Name the successor of a deleted session: Honcho never accepts the name of a deleted one again."""
    return join_ids(name, f"r{round}") if round else name


def our_session_id(name: str | None) -> str:
    """Return our session of a name; empty if the name does not tell."""
    parts = (name or "").split(SEPARATOR)
    return decode_id(parts[1]) or "" if len(parts) > 1 and parts[0] in (_SESSION, _NOTE) else ""


def entry_messages(
    sides: Sequence[tuple[str, str]], *, ref: SessionRef, seq: int, kind: str, at: float | None, turn: int | None = None
) -> tuple[NewMessage, ...]:
    """Convert a log entry, a text for each peer, to messages. The metadata name the entry and the part of it."""
    origin: dict[str, Any] = {"session": ref.session_id, "owner": ref.owner, "seq": seq, "kind": kind}
    if turn is not None:
        origin["turn"] = turn
    parts = ((peer, piece) for peer, text in sides for piece in split_text(text, CONTENT_CHARS_MAX))
    return tuple(
        NewMessage(peer, piece, {**origin, "part": number}, _format_time(at))
        for number, (peer, piece) in enumerate(parts)
    )


def missing_messages(messages: Iterable[NewMessage], stored: Iterable[HonchoMessage]) -> tuple[NewMessage, ...]:
    """Return the messages that are not stored yet."""
    known = {_message_key(message) for message in stored}
    return tuple(message for message in messages if _message_key(message) not in known)


def unmarked_duplicates(messages: Sequence[HonchoMessage]) -> tuple[HonchoMessage, ...]:
    """Return messages that repeat a part of an entry and are not marked as undone yet."""
    first: dict[tuple[Any, ...], HonchoMessage] = {}
    for message in messages:
        first.setdefault(_message_key(message), message)
    return tuple(
        message
        for message in messages
        if first[_message_key(message)] is not message and not message.metadata.get(_UNDONE)
    )


def undone_metadata(message: HonchoMessage) -> dict[str, Any]:
    return {**message.metadata, _UNDONE: True}


def without_text(message: HonchoMessage, text: str) -> NewMessage:
    """Copy a message without a text."""
    content = message.content.replace(text, FORGOTTEN)
    return NewMessage(message.peer_id, content, message.metadata, message.created_at or UNSET)


def updated_metadata(session: HonchoSession, ref: SessionRef, **more: str) -> dict[str, Any] | None:
    """Add what is known of a session to its metadata, which stay; None if nothing changes."""
    wanted: dict[str, Any] = {"session": ref.session_id, "owner": ref.owner}
    wanted |= {name: value for name, value in more.items() if value}
    return None if wanted.items() <= session.metadata.items() else {**session.metadata, **wanted}


def recall_items(
    conclusions: Sequence[Conclusion], messages: Sequence[HonchoMessage], owner: str, limit: int
) -> tuple[RecallItem, ...]:
    """Interleave messages and conclusions, best first.

    Leaves out other owners' messages, undone messages and duplicates. Honcho returns an order and no scores, so the
    score is the rank.
    """
    concluded = [
        RecallItem(one.content, session_id=our_session_id(one.session_id))
        for one in conclusions
        if one.observed_id == user_peer(owner)
    ]
    own = {_message_key(one): one for one in reversed(messages) if one.peer_id in session_peers(owner)}
    said = [
        _message_item(one, owner)
        for one in messages
        if own.get(_message_key(one)) is one and not one.metadata.get(_UNDONE)
    ]
    mixed = [item for item in chain.from_iterable(zip_longest(said, concluded)) if item is not None]
    return tuple(replace(item, score=1 / rank) for rank, item in enumerate(mixed[:limit], 1))


def _message_item(message: HonchoMessage, owner: str) -> RecallItem:
    role = "user" if message.peer_id == user_peer(owner) else "assistant"
    session, turn = message.metadata.get("session"), message.metadata.get("turn")
    return RecallItem(
        f"{role}: {message.content}",
        session_id=session if isinstance(session, str) else our_session_id(message.session_id),
        turn=turn if isinstance(turn, int) else None,
        at=_parse_time(message.created_at),
    )


def _message_key(message: NewMessage | HonchoMessage) -> tuple[Any, ...]:
    """Identify the part of the entry that a message holds. A message without one is not ours, and is unique."""
    key = tuple(message.metadata.get(name) for name in ("session", "seq", "part"))
    return key if None not in key else (getattr(message, "id", ""),)


def _format_time(at: float | None) -> str | UnsetType:
    return datetime.fromtimestamp(at, UTC).isoformat() if at is not None else UNSET


def _parse_time(at: str) -> float | None:
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return None
