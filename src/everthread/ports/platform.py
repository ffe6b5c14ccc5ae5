"""Chat platforms: receive updates and send messages.

A platform knows nothing of sessions, owners or commands, and keeps no durable state: it acknowledges an update upstream
only after the update is stored.

Test a platform with `everthread.testing.contracts.platform.PlatformContract`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, Protocol

from msgspec import Struct

from everthread.domain.media import Media as Media
from everthread.domain.media import MediaKind as MediaKind
from everthread.domain.model import ChatType, SessionKey


class Quoted(Struct, frozen=True):
    """The message that an update replies to."""

    text: str
    user_name: str = ""


class Update(Struct, frozen=True):
    """An incoming message. `update_id` is the platform's own id; a repeated id is accepted once."""

    platform: str
    account: str
    update_id: str
    chat: str
    chat_type: ChatType
    user: str
    text: str
    thread: str | None = None
    user_name: str = ""
    media: tuple[Media, ...] = ()
    reply_to: Quoted | None = None
    message_id: str = ""
    """The message's id in the same form as ids of sent messages. Required if the platform has a `Finder`."""


class MovedChat(Struct, frozen=True):
    """A chat got a new id. The core keeps using the old one; the platform maps between them in both directions."""

    platform: str
    chat: str
    to: str


class Unreadable(Struct, frozen=True):
    """An update that can never be parsed. `problem` quotes nothing of it."""

    platform: str
    update_id: str
    problem: str


Incoming = Update | MovedChat | Unreadable

BUTTON_COMMAND_BYTES_MAX = 64
"""The smallest limit among platforms with buttons."""


class Button(Struct, frozen=True):
    """A button: its label, and the command that a press sends.

    A press is an `Update` with an id of its own: `text` is the command, `user` the person who pressed, `chat` and
    `thread` the button's. It is stored before the platform confirms it; two presses are two updates. `command` has at
    most `BUTTON_COMMAND_BYTES_MAX` bytes.
    """

    label: str
    command: str


class Address(Struct, frozen=True):
    """The chat and thread that a message goes to."""

    chat: str
    thread: str | None = None

    @classmethod
    def of(cls, key: SessionKey) -> Address:
        return cls(key.chat, key.thread)


class File(Struct, frozen=True):
    name: str
    content: bytes


class Outbound(Struct, frozen=True):
    """An outgoing message in Markdown. Every attempt has the same `id`."""

    id: str
    to: Address
    text: str
    buttons: tuple[Button, ...] = ()
    files: tuple[File, ...] = ()


MarkdownDialect = Literal["none", "commonmark", "telegram", "matrix", "discord", "slack"]


class Capabilities(Struct, frozen=True):
    """Abilities and limits of a platform."""

    text_chars_max: int
    edits: bool = False
    """Sent messages can be edited, so that answers are shown while they are written."""
    edit_every_s: float = 1.0
    """Shortest time between edits in one chat."""
    edit_every_s_in_groups: float | None = None
    """Shortest time between edits in a group, if it differs."""
    counts_utf16: bool = False
    """`text_chars_max` counts UTF-16 units: a character outside the basic plane counts twice."""
    typing: bool = False
    buttons: bool = False
    files: bool = False
    fetches: bool = False
    """Attachments can be fetched."""
    threads: bool = False
    idempotent_send: bool = False
    """Two sends with one id give one message, so that a send without a response can be repeated."""
    markdown: MarkdownDialect = "commonmark"
    """The dialect that the adapter translates Markdown into; `none` sends it unchanged."""


Take = Callable[[Incoming], Awaitable[None]]
"""Returns once the update is stored or refused for good; only then acknowledge it upstream."""


class Finder(Protocol):
    """Finds out if a send without a response reached the chat.

    Platforms number messages in order, so a message comes after those that were known when it was sent. A mark names
    the newest known message of a chat, in a form of the platform's own.
    """

    def know(self, to: Address, message_id: str) -> None:
        """Note an existing message; later messages come after it."""
        ...

    def newest(self, to: Address) -> str:
        """Return the mark of the newest known message; empty if there is none."""
        ...

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        """Return the id of the first message after the mark that may be this one or its beginning. Changes nothing.

        It is our own message of the same kind and not in `besides`; with `until`, it comes before that message. Returns
        None if there is none; the message may then be sent again. Raises `SendUncertain` if the platform can't tell,
        `PlatformUnavailable` to be asked again later.
        """
        ...

    async def delete(self, to: Address, message_id: str) -> None:
        """Delete one of our own messages. Raises `PlatformRefused` if that is not possible."""
        ...


class Platform(Protocol):
    """One account on one platform. Raises only `PlatformError`."""

    @property
    def name(self) -> str:
        """The name in session keys; two accounts on one platform have two names."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def finder(self) -> Finder | None:
        """None if sent messages can't be searched."""
        ...

    async def run(self, take: Take) -> None:
        """Receive updates, in order per chat, until cancelled. After `PlatformUnavailable` it is run again later."""
        ...

    async def send(self, message: Outbound) -> str:
        """Send a message and return the platform's id of it.

        Raises `PlatformUnavailable` if it was certainly not sent, `SendUncertain` if it may have been, and
        `PlatformRefused` if it never will be.
        """
        ...

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        """Replace the text and the buttons of a message. Idempotent."""
        ...

    async def show_typing(self, to: Address) -> None:
        """Show a typing indicator for some seconds."""
        ...

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        """Download an attachment. Raises `PlatformRefused` if it does not exist any more or exceeds `bytes_max`."""
        ...

    async def aclose(self) -> None: ...
