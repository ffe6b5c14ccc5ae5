"""Messages of the loopback protocol: one JSON object each way, by POST. Tested in tests/unit/testing/loopback."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FaultKind = Literal["busy", "error", "unavailable", "refuse", "drop_before", "drop_after", "delay"]
"""Kinds of faults: 429, 500, 503, 403, connection broken before or after the effect, delayed answer."""

Call = Literal["poll", "send", "edit", "typing"]


class UserMessage(Struct, frozen=True):
    """A user sends a message."""

    chat: str
    user: str
    text: str
    chat_type: Literal["dm", "group", "channel", "thread"] = "dm"
    thread: str | None = None
    user_name: str = ""


class PostedUpdate(Struct, frozen=True):
    """Queued update. A redelivery has a new number and the same id."""

    number: int
    update_id: str
    said: UserMessage


class Poll(Struct, frozen=True):
    """Request the updates from `offset` on. Earlier ones are acknowledged and not delivered again."""

    offset: int = 0
    timeout_s: float = 0.0
    limit: int = 100


class Send(Struct, frozen=True):
    id: str
    chat: str
    text: str
    thread: str | None = None
    buttons: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()


class Edit(Struct, frozen=True):
    chat: str
    message_id: str
    text: str
    buttons: tuple[tuple[str, str], ...] = ()


class Typing(Struct, frozen=True):
    chat: str


class Fault(Struct, frozen=True):
    """Let the next calls of one kind, or of any, fail; in one chat, or in all."""

    kind: FaultKind
    call: Call | None = None
    times: int = 1
    seconds: float = 0.0
    """For `busy`, the retry-after time; for `delay`, the delay."""
    chat: str | None = None


class ChatEvent(Struct, frozen=True):
    """One entry of the message log of all chats: `said` by a user, `sent` or `edited` by the agent."""

    number: int
    at: float
    what: Literal["said", "sent", "edited"]
    chat: str
    text: str
    message_id: str = ""
    """Id of a message by the agent; for a message by a user, the update's id."""
    id: str = ""
    """Id under which the agent sent the message."""
    thread: str | None = None
    buttons: tuple[tuple[str, str], ...] = ()


class LogRequest(Struct, frozen=True):
    """Request the log from that entry on. Waits if there is none yet."""

    after: int = 0
    timeout_s: float = 0.0


class ServerState(Struct, frozen=True):
    seen: tuple[ChatEvent, ...]
    acknowledged: int
    """Updates below this number are acknowledged."""
    waiting: int
    typing: int
    calls: dict[str, int]
