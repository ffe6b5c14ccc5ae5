"""Messages of the control interface: one JSON object each way, by POST to `/control/...`.

Tested in tests/e2e/testing/telegram/test_control.py.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from everthread.testing.telegram.objects import MessageEntity

FileKind = Literal["photo", "document", "voice"]

FaultKind = Literal[
    "busy",
    "error",
    "unavailable",
    "gibberish",
    "refuse",
    "drop_before",
    "drop_after",
    "delay",
    "duplicate",
    "reorder",
]
"""Kinds of faults. Of calls: 429, 500, 502, 502 with an HTML page, 403; connection broken before or after the effect;
answer delayed after the effect. Of updates: each delivered twice, or delivered in reverse order.
"""


class UserProfile(Struct, frozen=True):
    """A user with a name. Without one, a user is named after their id."""

    id: int
    first_name: str
    username: str | None = None
    language_code: str | None = None


class Group(Struct, frozen=True):
    """A group that contains the bot. Its id is negative."""

    id: int
    title: str
    is_forum: bool = False
    username: str | None = None
    kind: Literal["group", "supergroup"] = "supergroup"


class GroupUpgrade(Struct, frozen=True):
    """A group is upgraded to a supergroup with another id."""

    chat: int
    to: int
    user: int


class Topic(Struct, frozen=True):
    chat: int
    user: int
    name: str


class AttachedFile(Struct, frozen=True):
    kind: FileKind
    content: bytes
    name: str = ""
    mime: str = ""
    duration_s: int = 0


class UserMessage(Struct, frozen=True):
    """A user sends a message to the bot or in a group. With a file, the text is its caption."""

    user: int
    text: str = ""
    chat: int | None = None
    thread: int | None = None
    reply_to: int | None = None
    parse_mode: str | None = None
    file: AttachedFile | None = None


class RawMessage(Struct, frozen=True):
    """A message that no library can parse. Its JSON is delivered unchanged."""

    message: Raw


class UserEdit(Struct, frozen=True):
    """A user edits their message."""

    user: int
    chat: int
    message_id: int
    text: str


class ButtonPress(Struct, frozen=True):
    """A user presses a button, identified by its label or its data."""

    user: int
    chat: int
    message_id: int
    button: str


class BotBlock(Struct, frozen=True):
    """A user blocks the bot or a group removes it; or the reverse."""

    chat: int
    is_blocked: bool = True


class PostedUpdate(Struct, frozen=True):
    message_id: int
    update_id: int | None
    """None if the bot does not receive the update."""
    query_id: str | None = None
    """Id of the callback query of a pressed button."""


class Fault(Struct, frozen=True):
    """Let the next calls of one method, or of any, fail; in one chat, or in all."""

    kind: FaultKind
    call: str | None = None
    times: int = 1
    seconds: float = 0.0
    """For `busy`, the retry-after time; for `delay`, the delay."""
    chat: int | None = None


class LogRequest(Struct, frozen=True):
    """Request the log from that entry on. Waits if there is none yet."""

    after: int = 0
    timeout_s: float = 0.0


ChatEventKind = Literal["said", "corrected", "pressed", "sent", "edited", "deleted", "typing", "toast"]


class ChatEvent(Struct, frozen=True):
    """One entry of the message log of all chats: `said`, `corrected` and `pressed` are actions of users, the rest are
    the bot's. A `toast` is the answer to a pressed button.
    """

    number: int
    at: float
    what: ChatEventKind
    chat: int
    message_id: int = 0
    text: str = ""
    thread: int | None = None
    user: int = 0


class ShownFile(Struct, frozen=True):
    kind: FileKind
    file_id: str
    size: int
    name: str = ""
    mime: str = ""


class ShownMessage(Struct, frozen=True):
    """Current state of a message in a chat."""

    chat: int
    message_id: int
    user: int
    name: str
    is_bot: bool
    text: str
    marked: str
    """Text with marks for its entities, as on a screen."""
    entities: tuple[MessageEntity, ...] = ()
    thread: int | None = None
    reply_to: int | None = None
    is_edited: bool = False
    buttons: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Rows of pairs: a button's label, and its data or URL."""
    file: ShownFile | None = None


class ChatTopic(Struct, frozen=True):
    """A chat, or one of its topics."""

    chat: int
    thread: int | None = None


class ServerState(Struct, frozen=True):
    """State of the server about its bot."""

    pending: tuple[int, ...]
    """Updates not yet confirmed by an offset."""
    calls: dict[str, int]
    refused: dict[str, int]
    """Number of error responses by code."""
    commands: dict[str, str]
    webhook_url: str = ""
    repeated: tuple[int, ...] = ()
    """Updates waiting for redelivery."""
