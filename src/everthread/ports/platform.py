"""Platforms: where people write to the agent from elsewhere.

A platform hands over what came in and sends what is to go out. It knows nothing of sessions, owners or commands, and
keeps nothing that must outlive it: what it was handed is acknowledged upstream only after it is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, Protocol

from msgspec import Struct

from everthread.domain.media import Media as Media
from everthread.domain.media import MediaKind as MediaKind
from everthread.domain.model import ChatType, SessionKey


class Quoted(Struct, frozen=True):
    """The message that another one answers."""

    text: str
    user_name: str = ""


class Update(Struct, frozen=True):
    """What came in. `update_id` is the platform's own number for it: delivered twice, it is taken once."""

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
    """Of the message, in the way in which those that are sent have one. Wanted where there is a `Finder`."""


class MovedChat(Struct, frozen=True):
    """A chat has another id from now on. It is known by the one that it had: what comes from the new one is taken for
    it, and the platform finds the way to it.
    """

    platform: str
    chat: str
    to: str


class Unreadable(Struct, frozen=True):
    """Something came in that nothing can be made of, now or later. `problem` repeats nothing of it."""

    platform: str
    update_id: str
    problem: str


Incoming = Update | MovedChat | Unreadable

BUTTON_COMMAND_BYTES_MAX = 64
"""As much as every platform with buttons keeps behind one."""


class Button(Struct, frozen=True):
    """Something to press: what it shows, and the command that comes in when it is pressed.

    A press is an `Update` like any other, with an id of its own: `text` is the command, `user` whoever pressed, and
    `chat` and `thread` where the button is. It is taken before the platform is told that it was; pressed twice, it
    comes twice. `command` has at most `BUTTON_COMMAND_BYTES_MAX` bytes.
    """

    label: str
    command: str


class Address(Struct, frozen=True):
    """Where something goes."""

    chat: str
    thread: str | None = None

    @classmethod
    def of(cls, key: SessionKey) -> Address:
        return cls(key.chat, key.thread)


class File(Struct, frozen=True):
    name: str
    content: bytes


class Outbound(Struct, frozen=True):
    """What goes out, in Markdown. `id` is the same however often it is tried."""

    id: str
    to: Address
    text: str
    buttons: tuple[Button, ...] = ()
    files: tuple[File, ...] = ()


MarkdownDialect = Literal["none", "commonmark", "telegram", "matrix", "discord", "slack"]


class Capabilities(Struct, frozen=True):
    """What a platform can do."""

    text_chars_max: int
    edits: bool = False
    """A message that is out can be given another text: answers are shown while they are written."""
    edit_every_s: float = 1.0
    """Not more often than that, in one chat."""
    edit_every_s_in_groups: float | None = None
    """If it is another there."""
    counts_utf16: bool = False
    """A character outside the basic plane counts as two, of `text_chars_max`."""
    typing: bool = False
    buttons: bool = False
    files: bool = False
    fetches: bool = False
    """What comes with a message can be fetched."""
    threads: bool = False
    idempotent_send: bool = False
    """What is sent twice under one id goes out once: a send of which nothing was heard can be repeated."""
    markdown: MarkdownDialect = "commonmark"
    """What the adapter makes of the Markdown that it is handed; `none` shows it as it is written."""


Take = Callable[[Incoming], Awaitable[None]]
"""Comes back once it is stored, or was turned away for good: only then may it be acknowledged upstream."""


class Finder(Protocol):
    """Asks a platform what became of a send of which nothing was heard, where that can be asked.

    Messages are numbered by a platform as they come, so what was handed over at some time is behind whatever was known
    then. How the newest known message of a place is called is the platform's own matter: a mark.
    """

    def know(self, to: Address, message_id: str) -> None:
        """A message is there: what is sent from now on comes after it."""
        ...

    def newest(self, to: Address) -> str:
        """The mark of the newest message that is known there; empty if none is."""
        ...

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        """The id of the first message there behind that mark which may be this one, or a beginning of it: one's own, of
        its kind, and none of those `besides`. With `until`, only what is before the message of that id is looked at.
        `None` if there is none: whoever has nothing on its way any more may send it again. Asking changes nothing.

        Raises `SendUncertain` if nobody can say, `PlatformUnavailable` if it is to be asked again later.
        """
        ...

    async def take_back(self, to: Address, message_id: str) -> None:
        """Remove a message of one's own. Raises `PlatformRefused` if it can't be."""
        ...


class Platform(Protocol):
    """One account on one platform. Its methods raise `PlatformError`s and nothing else."""

    @property
    def name(self) -> str:
        """As in session keys; two accounts on one platform have two names."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def finder(self) -> Finder | None:
        """`None` where what was sent can't be looked for."""
        ...

    async def run(self, take: Take) -> None:
        """Hand over what comes in, in order for each chat, until cancelled. Raises `PlatformUnavailable` if it can't:
        it is run again after a while.
        """
        ...

    async def send(self, message: Outbound) -> str:
        """The platform's own id of the message. Raises `PlatformUnavailable` if it has certainly not gone out,
        `SendUncertain` if it may have, `PlatformRefused` if it never will.
        """
        ...

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        """Give a message another text, and these buttons in the place of those it had. Doing it twice is doing it
        once.
        """
        ...

    async def show_typing(self, to: Address) -> None:
        """Show for some seconds that an answer is being written."""
        ...

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        """What is in something that came in. Raises `PlatformRefused` if it is gone, or larger than that."""
        ...

    async def aclose(self) -> None: ...
