"""The part of an owner's memory that a conversation may be shown. In a group chat: what was said there.

Others read the answers in a group, so a person who asks there must not be answered from private conversations.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.model import ChatType, SessionKey

GROUP_PREFIX = "group:"
"""The names of owners that are groups begin with it."""


class RecallScope(Struct, frozen=True):
    """The memory of one owner, or the part of it that belongs to one group chat."""

    owner: str
    chat: str | None = None
    """Only turns and notes of this group chat; `None` for all of the owner's."""
    in_group: bool = False
    """Others read the answer: only providers that filter by conversation are asked."""

    @property
    def mark(self) -> str:
        """Return the text that a stored prompt has of its scope; empty for all of a person's memory."""
        return self.chat or ("group" if self.in_group else "")


def chat_of(key: SessionKey) -> str | None:
    """Return the group chat of a key, without the user; `None` for a private conversation.

    A thread is a chat of its own: on some platforms fewer people read it than its group, or others.
    """
    return None if key.chat_type is ChatType.DM else str(replace(key, user=None))


def group_owner(key: SessionKey) -> str:
    """Return the owner of the session that a group or thread shares."""
    parts = (key.platform, key.chat, key.thread or "")
    # Escape colons: an id must not read like a chat and its thread.
    return GROUP_PREFIX + ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts if part)
