"""What the loopback platform and those who use it say to each other: one JSON object each way, by POST."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["busy", "error", "unavailable", "refuse", "drop_before", "drop_after", "delay"]
"""What goes wrong: 429, 500, 503, 403, the connection breaks before or after the effect, the answer takes its time."""

Call = Literal["poll", "send", "edit", "typing"]


class Said(Struct, frozen=True):
    """A person writes something."""

    chat: str
    user: str
    text: str
    chat_type: Literal["dm", "group", "channel", "thread"] = "dm"
    thread: str | None = None
    user_name: str = ""


class Posted(Struct, frozen=True):
    """An update as it stands in the queue. Delivered again, it has another number and the same id."""

    number: int
    update_id: str
    said: Said


class Poll(Struct, frozen=True):
    """Give the updates from `offset` on; those before it are acknowledged, and never come again."""

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
    """The next calls of one kind, or of any, go wrong; in one chat, or in all."""

    kind: Kind
    call: Call | None = None
    times: int = 1
    seconds: float = 0.0
    """Of `busy`, how long to stay away; of `delay`, how long it takes."""
    chat: str | None = None


class Seen(Struct, frozen=True):
    """One line of what people see, all chats together: `said` by a person, `sent` or `edited` by the agent."""

    number: int
    at: float
    what: Literal["said", "sent", "edited"]
    chat: str
    text: str
    message_id: str = ""
    """Of what the agent sent; of what a person said, the update's id."""
    id: str = ""
    """Under which it was sent."""
    thread: str | None = None
    buttons: tuple[tuple[str, str], ...] = ()


class Watch(Struct, frozen=True):
    """What people have seen from that line on; waits for it if there is nothing yet."""

    after: int = 0
    timeout_s: float = 0.0


class Dump(Struct, frozen=True):
    seen: tuple[Seen, ...]
    acknowledged: int
    """Updates below this number are done with."""
    waiting: int
    typing: int
    calls: dict[str, int]
