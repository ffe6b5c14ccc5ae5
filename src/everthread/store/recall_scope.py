"""Find the recall scope of a session, also of work that a group chat delegated or scheduled."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.model import (
    CRON_PLATFORM,
    SUBAGENT_PLATFORM,
    ChatType,
    Session,
    SessionKey,
    SessionRef,
    delegating_turn,
)
from everthread.domain.recall_scope import RecallScope, chat_of, group_owner
from everthread.domain.schedule import TargetKind
from everthread.store.unit_of_work import UnitOfWork

_ANCESTORS_MAX = 10_000


class RecallScopes(Struct, frozen=True):
    """Decide what each session may be shown of its owner's memory. No other module does."""

    in_groups: str = "group"
    """The setting `memory.recall_in_groups`. `owner`: groups are not limited."""

    def of(self, uow: UnitOfWork, ref: SessionRef) -> RecallScope:
        """Return the scope of a session at a key. Reads the store only for delegated and scheduled work."""
        if self.in_groups == "owner":
            return RecallScope(ref.owner)
        key = audience_key(uow, ref)
        if key is None:
            # No turn or note has this chat: nothing is found.
            return RecallScope(ref.owner, str(ref.key), in_group=True)
        return scope_at(key, ref.owner)

    def is_limited(self, ref: SessionRef) -> bool:
        """Return False if no limit can apply, without reading the store."""
        return self.in_groups != "owner" and not _is_private(ref.key)


DEFAULT_RECALL_SCOPES = RecallScopes()
"""The default: in a group chat, only what was said there."""


def scope_at(key: SessionKey, owner: str) -> RecallScope:
    """Return the scope of an owner's session whose answers are read at the key."""
    chat = chat_of(key)
    if chat is None:
        return RecallScope(owner)
    # Everything that a group owns was said in it.
    return RecallScope(owner, None if owner == group_owner(key) else chat, in_group=True)


def audience_key(uow: UnitOfWork, ref: SessionRef) -> SessionKey | None:
    """Return the key at which the answers of a session are read; None if nobody knows.

    Delegated work answers the turn that waits for it, and a scheduled task the chat that its result is sent to. After
    that turn, its row names the chat. Its session does not: one that was begun in private may continue in a group.
    """
    key = ref.key
    if key.platform == SUBAGENT_PLATFORM:
        slot = uow.slots.get(delegating_turn(key))
        if slot is not None:
            return slot.ref.key if slot.ref.key.platform != CRON_PLATFORM else audience_key(uow, slot.ref)
        session = uow.sessions.get(ref.session_id)
        row = uow.turns.chat(session.parent_id or "", delegating_turn(key)) if session is not None else None
        if row is None:
            return None
        (chat,) = row
        return SessionKey.parse(chat) if chat is not None else key
    if key.platform == CRON_PLATFORM:
        schedule = uow.schedules.get(key.chat)
        if schedule is not None and schedule.target.kind is TargetKind.CHAT:
            return SessionKey.parse(schedule.target.to)
    return key


def chat_of_turn(uow: UnitOfWork, ref: SessionRef) -> str | None:
    """Return the group chat in which a turn of the session is said."""
    key = ref.key if _is_private(ref.key) else audience_key(uow, ref)
    return chat_of(key) if key is not None else None


def chat_of_note(uow: UnitOfWork, session: Session, ref: SessionRef) -> str | None:
    """Return the group chat of a note that is written in the session.

    None if the session also shows turns of another conversation, which the note may quote.
    """
    chat, at, left = chat_of_turn(uow, ref), session, _ANCESTORS_MAX
    while chat is not None and left:
        if uow.turns.has_other_chat(at.id, chat):
            return None
        parent = uow.sessions.get(at.parent_id) if at.parent_id else None
        if parent is None:
            return chat
        at, left = parent, left - 1
    return None


def _is_private(key: SessionKey) -> bool:
    return key.chat_type is ChatType.DM and key.platform not in (SUBAGENT_PLATFORM, CRON_PLATFORM)
