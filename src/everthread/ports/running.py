"""Turns that run, what came in and goes out, and what it costs, as the store keeps them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from everthread.domain.media import Media
from everthread.domain.model import (
    Fate,
    Inbound,
    InboxRow,
    InboxState,
    Reply,
    ReplyState,
    SessionKey,
    SessionRef,
    Slot,
    ToolRow,
)
from everthread.domain.spend import Spent, Used


class Slots(Protocol):
    def add(self, slot: Slot) -> None: ...
    def get(self, turn_id: str) -> Slot | None: ...
    def live(self, session_id: str) -> Slot | None: ...
    def of_session(self, session_id: str) -> tuple[Slot, ...]: ...
    def delegated(self, session_id: str) -> bool: ...
    def held_by(self, holder: str) -> bool: ...
    def set_fate(self, turn_id: str, fate: Fate) -> None: ...
    def take_over(self, turn_id: str, holder: str) -> Slot: ...
    def drop(self, turn_id: str) -> None: ...
    def orphans(self, now: float) -> tuple[Slot, ...]:
        """Slots whose process has lost its lease."""
        ...

    def start_tool(self, row: ToolRow, owner: str) -> None: ...
    def finish_tool(self, turn_id: str, call_id: str, result: str) -> None: ...
    def tools(self, turn_id: str) -> tuple[ToolRow, ...]: ...
    def drop_tools(self, turn_id: str) -> None: ...


class Inbox(Protocol):
    def accept(self, inbound: Inbound, now: float) -> tuple[InboxRow, bool]:
        """The stored row, and whether it is new: an update that was taken before is not taken again."""
        ...

    def known(self, inbound: Inbound) -> InboxRow | None:
        """What was taken under the same number before, if anything was."""
        ...

    def get(self, inbox_id: int) -> InboxRow | None: ...
    def first_waiting(self, key: SessionKey) -> InboxRow | None:
        """The key's next message."""
        ...

    def next(self, key: SessionKey) -> InboxRow | None:
        """The key's next message or command; also a command that was begun and never answered."""
        ...

    def last_user(self, key: SessionKey) -> str:
        """Who wrote there last; empty if nobody did, or it is not known. Not to be asked often."""
        ...

    def commands(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """The key's commands that are not answered yet."""
        ...

    def keys_waiting(self) -> tuple[SessionKey, ...]:
        """Where a message or a command waits, the longest waiting first."""
        ...

    def waiting(self, key: SessionKey, before_id: int | None = None) -> tuple[InboxRow, ...]:
        """The key's messages that wait."""
        ...

    def of_turn(self, key: SessionKey, turn_id: str) -> tuple[InboxRow, ...]:
        """The messages that a running turn of the key answers: the one it began with, and those it was steered by."""
        ...

    def unpack(self, inbox_id: int, text: str, media: tuple[Media, ...]) -> bool:
        """What came with the message was fetched: it reads so from now on; without a text, nothing is to be answered.
        False if it waits no longer.
        """
        ...

    def take_up(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message is answered by this turn, which runs."""
        ...

    def set_aside(self, inbox_id: int, session_id: str, turn_id: str) -> None:
        """The message stands in this turn, unanswered. What was not fetched of it never will be: it is named among
        the discarded.
        """
        ...

    def end_command(self, inbox_id: int) -> None:
        """The command was carried out."""
        ...

    def end_turn(self, key: SessionKey, turn_id: str, state: InboxState) -> None:
        """The messages `of_turn` are done, or set aside: their words stand in the turn, if anywhere."""
        ...

    def move_chat(self, platform: str, chat: str, known_as: str) -> None:
        """The chat that has this id on its platform now is the one that is known by another."""
        ...

    def moved_chats(self) -> dict[tuple[str, str], str]:
        """By platform and the id there: what such a chat is known as."""
        ...

    def put_reply(self, reply: Reply) -> Reply:
        """What is known of it then: the platform's id of a draft is kept, and from where on to look for it."""
        ...

    def attach(self, turn_id: str, owner: str, name: str, content: bytes) -> None:
        """What goes out with a reply, kept until nothing more is to become of it."""
        ...

    def attached(self, turn_id: str) -> bytes | None: ...
    def reply(self, turn_id: str) -> Reply | None: ...
    def replies(self, state: ReplyState, limit: int, after: tuple[float, str] | None = None) -> tuple[Reply, ...]:
        """The oldest first, from behind the one of that time and turn."""
        ...

    def newest_known(self, limit: int) -> tuple[tuple[SessionKey, str], ...]:
        """Where messages are, and their ids on the platform: of the newest replies, and the newest that came in."""
        ...

    def out_as(self, platform_message_id: str, since: float) -> tuple[Reply, ...]:
        """Those of that time or later which are known to be out under that id, on any platform."""
        ...


class Spend(Protocol):
    def reserve(self, ref: SessionRef, turn_id: str, model: str, amount: float, now: float) -> int: ...
    def settle(self, spent: Spent, ref: SessionRef, turn_id: str, now: float) -> None:
        """Write down what a call has cost, whether or not something was reserved for it."""
        ...

    def total(self, owner: str, since: float) -> float: ...
    def of_turn(self, ref: SessionRef, turn_id: str, since: float) -> float:
        """What was spent or is set aside for one turn, or whatever stands in its place."""
        ...

    def by_model(self, owner: str, since: float, sessions: Collection[str] | None = None) -> tuple[Used, ...]:
        """What each model was used for since, in these sessions or in all; the dearest first."""
        ...
