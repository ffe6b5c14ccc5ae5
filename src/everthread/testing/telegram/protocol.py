"""What tests and the emulator say to each other: one JSON object each way, by POST to `/control/...`."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from everthread.testing.telegram.objects import MessageEntity

FileKind = Literal["photo", "document", "voice"]

Kind = Literal[
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
"""What goes wrong with a call: 429, 500, 502, 502 with a page of HTML, 403; the connection breaks before or after the
act; the act is done and its answer takes its time. Of updates: each one comes twice, or the last one first."""


class Person(Struct, frozen=True):
    """Somebody who is not simply called after their number."""

    id: int
    first_name: str
    username: str | None = None
    language_code: str | None = None


class Group(Struct, frozen=True):
    """A group with the bot in it. Its number is negative."""

    id: int
    title: str
    is_forum: bool = False
    username: str | None = None
    kind: Literal["group", "supergroup"] = "supergroup"


class Upgraded(Struct, frozen=True):
    """A group becomes a supergroup, under another number."""

    chat: int
    to: int
    user: int


class Topic(Struct, frozen=True):
    chat: int
    user: int
    name: str


class Attached(Struct, frozen=True):
    kind: FileKind
    content: bytes
    name: str = ""
    mime: str = ""
    duration_s: int = 0


class Said(Struct, frozen=True):
    """A person writes something: to the bot, or in a group. With a file, the text is its caption."""

    user: int
    text: str = ""
    chat: int | None = None
    thread: int | None = None
    reply_to: int | None = None
    parse_mode: str | None = None
    file: Attached | None = None


class Odd(Struct, frozen=True):
    """A message that no library can read: it is brought as it is given."""

    message: Raw


class Corrected(Struct, frozen=True):
    """A person edits what they wrote."""

    user: int
    chat: int
    message_id: int
    text: str


class Pressed(Struct, frozen=True):
    """A person presses a button, known by what it shows or by what it carries."""

    user: int
    chat: int
    message_id: int
    button: str


class Blocked(Struct, frozen=True):
    """A person blocks the bot, or a group removes it; or takes that back."""

    chat: int
    is_blocked: bool = True


class Posted(Struct, frozen=True):
    message_id: int
    update_id: int | None
    """None: the bot does not get to know of it."""
    query_id: str | None = None
    """Of a button that was pressed."""


class Fault(Struct, frozen=True):
    """The next calls of one method, or of any, go wrong; in one chat, or in all."""

    kind: Kind
    call: str | None = None
    times: int = 1
    seconds: float = 0.0
    """Of `busy`, how long to stay away; of `delay`, how long it takes."""
    chat: int | None = None


class Watch(Struct, frozen=True):
    """What people have seen from that line on; waits for it if there is nothing yet."""

    after: int = 0
    timeout_s: float = 0.0


Sight = Literal["said", "corrected", "pressed", "sent", "edited", "deleted", "typing", "toast"]


class Seen(Struct, frozen=True):
    """One line of what people see, all chats together: `said`, `corrected` and `pressed` are people's doing, the rest
    is the bot's. A `toast` is the answer to a pressed button.
    """

    number: int
    at: float
    what: Sight
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


class Shown(Struct, frozen=True):
    """A message as it stands in a chat now."""

    chat: int
    message_id: int
    user: int
    name: str
    is_bot: bool
    text: str
    marked: str
    """The text with its entities as marks, as on a screen."""
    entities: tuple[MessageEntity, ...] = ()
    thread: int | None = None
    reply_to: int | None = None
    is_edited: bool = False
    buttons: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Rows of what a button shows and what it carries: its data, or its address."""
    file: ShownFile | None = None


class Place(Struct, frozen=True):
    """A chat, or one topic of it."""

    chat: int
    thread: int | None = None


class Dump(Struct, frozen=True):
    """What the server knows of its bot."""

    pending: tuple[int, ...]
    """Updates that no offset has confirmed."""
    calls: dict[str, int]
    refused: dict[str, int]
    """How often which code was answered."""
    commands: dict[str, str]
    webhook_url: str = ""
    repeated: tuple[int, ...] = ()
    """Updates that are still to come once more."""
