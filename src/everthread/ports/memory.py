"""The contract of a memory provider.

Derive from `MemoryProvider`, set `name`, and override the hooks that you need. All hooks are optional. A hook is an
async function, or a plain one, which runs in a thread.

**Sessions.** There is one instance per profile, and it serves many sessions at once. Keep no current session: every
hook that concerns a session gets a `ref` with its owner, its id and its generation.

**Delivery.** Hooks that store something get a `delivery`. Within a session they are called one at a time, in the order
of the session's log, and at least once: after a crash or an error the same event comes again with the same
`delivery.key`. Store nothing twice under one key. Sessions do not wait for each other.

**Errors.** Raise `Unavailable` during an outage: the entry is retried with backoff, without limit. Raise `Rejected` for
content that you will never accept: the entry is parked and the session goes on. Any other error is retried a few times,
then parked. Raise `StartOver` if you lost entries that you had acknowledged.

Test a provider with `everthread.testing.contracts.memory_provider.ProviderContract`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any

from msgspec import Struct

from everthread.domain.events import (
    Delivery,
    Event,
    ForgetScope,
    Forgotten,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
    WorkDelegated,
)
from everthread.domain.model import Message, Role, SessionRef


class Capability(Flag):
    """Abilities that a provider declares. The core never probes for them."""

    NONE = 0
    RECALL = auto()
    """`prefetch` returns memories."""
    FORGET = auto()
    """`forget` erases them."""
    HEALTH = auto()
    """`health` checks the connection."""
    DEDUPLICATES = auto()
    """A repeated `delivery.key` has no effect."""
    GROUPS = auto()
    """In a group chat, `prefetch`, the prompt block and the tools return only what was said in that chat.

    Without it, the provider is not asked in group chats (`memory.recall_in_groups`). It still receives every event.
    """


class Scorecard(Struct, frozen=True):
    """The guarantees of a provider: `done`, or the reason for an exemption."""

    redelivery: str
    """An event that is delivered twice is stored once."""
    order: str
    """Events of a session take effect in order."""
    forget: str
    """`forget` erases what was delivered before it."""


class RecallItem(Struct, frozen=True):
    """One memory and its origin."""

    text: str
    score: float = 0.0
    """Relevance as the provider rates it. Items are returned best first."""
    provider: str = ""
    """Set by the core."""
    session_id: str = ""
    turn: int | None = None
    at: float | None = None
    """Seconds since the epoch, UTC."""
    note_id: str = ""
    """The id of the note, if the memory is one."""
    author: str = ""
    """The author of the note, such as `by a review`; empty if the owner wrote it."""
    also: tuple[str, ...] = ()
    """Other providers that returned the same memory. Set by the core."""


Returned = Awaitable[None] | None


@dataclass
class MemoryProvider:
    """Base class of memory providers. Every hook does nothing unless it is overridden."""

    name: str = field(default="", init=False)
    """Unique among the configured providers; part of every delivery key."""
    capabilities: Capability = field(default=Capability.NONE, init=False)
    scorecard: Scorecard = field(
        default=Scorecard("not declared", "not declared", "not declared"), init=False, repr=False
    )

    def initialize(self, **settings: Any) -> Returned:
        """Connect, with the settings of the provider's configuration section. Called once, before any other hook.

        After an error the provider counts as unavailable, and the call is repeated later.
        """

    def system_prompt_block(self, *, ref: SessionRef) -> str:
        """Return text for the system prompt of a session. It is read when the prompt is built, not at every turn."""
        return ""

    def prefetch(
        self, query: str, *, ref: SessionRef, limit: int
    ) -> Awaitable[Sequence[RecallItem]] | Sequence[RecallItem]:
        """Return up to `limit` memories of `ref.owner` for a query, best first.

        The turn waits for it within a deadline; a late result is dropped.
        """
        return ()

    def queue_prefetch(self, query: str, *, ref: SessionRef) -> Returned:
        """Prepare for a query that the next turn will probably make."""

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> Returned:
        """Store a committed turn: the user's text and the final answer.

        `more` has `messages` (all of the turn's messages), `turn` (its number), `status` and `at`.
        """

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """Return the tools that the provider offers to the model, as JSON schemas."""
        return ()

    def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> Awaitable[str] | str:
        """Run one of the provider's tools and return text for the model."""
        raise LookupError(f"{self.name} has no tool {name!r}")

    def on_turn_start(self, user: str, *, ref: SessionRef) -> Returned:
        """Note that a turn begins with this message. The turn may still be cancelled; store nothing."""

    def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> Returned:
        """Close the memory of a session: its entries up to `through_seq` were delivered.

        `messages` is the visible transcript. A session that is resumed is closed again later. `more` has `through_seq`,
        `missing` (positions of parked entries) and `view` (the turns, with inherited ones marked).
        """

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        ref: SessionRef,
        delivery: Delivery,
        **more: Any,
    ) -> Returned:
        """Note that a session was opened or rewound. The first entry of every log.

        Opened: `more` has `reason`, such as `new_session`, `branch` or `compression`; `reset` is true if the session
        starts empty, and `parent_session_id` names the session that it continues. Rewound: `more` has
        `rewound=True` and `turns`, the numbers of the turns to hide.
        """

    def on_pre_compress(self, messages: Sequence[Message], *, ref: SessionRef) -> Awaitable[str] | str:
        """Return what the summary of these messages should keep."""
        return ""

    def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> Returned:
        """Store a change of a curated note: `action` is `add`, `replace` or `remove`, `target` is `memory` or `user`.

        `metadata` has `note_id`, `version`, `newest`, `turn_id` and `at`; see `is_outdated`.
        """

    def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> Returned:
        """Store the result of delegated work. `more` has `child_session_id`."""

    def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> Returned:
        """Erase a session, a person (`ref.owner`) or a fact (`text` and `note_id`), and everything derived from it."""

    def health(self) -> Awaitable[str] | str:
        """Return "ok", or the problem in one line."""
        return "ok"

    def shutdown(self) -> Returned:
        """Release connections. Called once; undelivered entries come after the next start."""

    def deliver(self, event: Event, delivery: Delivery) -> Returned:
        """Call the hook for an event."""
        return HOOK_OF[type(event)][1](self, event, delivery)


def _opened(provider: MemoryProvider, event: SessionOpened, delivery: Delivery) -> Returned:
    return provider.on_session_switch(
        event.ref.session_id,
        parent_session_id=event.parent_id,
        reset=event.reset,
        reason=event.reason.value,
        ref=event.ref,
        delivery=delivery,
    )


def _turn(provider: MemoryProvider, event: TurnCommitted, delivery: Delivery) -> Returned:
    turn = event.turn
    return provider.sync_turn(
        turn.user_text,
        turn.assistant_text,
        ref=event.ref,
        delivery=delivery,
        messages=turn.messages,
        turn=turn.number,
        status=turn.status.value,
        at=turn.at,
    )


def _note(provider: MemoryProvider, event: NoteWritten, delivery: Delivery) -> Returned:
    note = event.note
    numbers = {"version": note.version, "newest": max(event.newest, note.version)}
    metadata = {"note_id": note.note_id, **numbers, "turn_id": note.turn_id, "at": note.at}
    return provider.on_memory_write(
        note.action.value, note.target.value, note.content, metadata, ref=event.ref, delivery=delivery
    )


def _delegated(provider: MemoryProvider, event: WorkDelegated, delivery: Delivery) -> Returned:
    return provider.on_delegation(
        event.task, event.result, ref=event.ref, delivery=delivery, child_session_id=event.child_session_id
    )


def _rewound(provider: MemoryProvider, event: SessionRewound, delivery: Delivery) -> Returned:
    return provider.on_session_switch(
        event.ref.session_id, rewound=True, turns=event.turns, ref=event.ref, delivery=delivery
    )


def _closed(provider: MemoryProvider, event: SessionClosed, delivery: Delivery) -> Returned:
    messages = [message for turn in event.view.turns for message in turn.messages]
    if event.view.summary:
        messages.insert(0, Message(Role.SYSTEM, event.view.summary))
    return provider.on_session_end(
        messages,
        ref=event.ref,
        delivery=delivery,
        through_seq=event.through_seq,
        missing=event.missing,
        view=event.view,
    )


def _forgotten(provider: MemoryProvider, event: Forgotten, delivery: Delivery) -> Returned:
    return provider.forget(event.scope, ref=event.ref, delivery=delivery, text=event.text, note_id=event.note_id)


Adapter = Callable[[MemoryProvider, Any, Delivery], Returned]

HOOK_OF: dict[type[Any], tuple[str, Adapter]] = {
    SessionOpened: ("on_session_switch", _opened),
    TurnCommitted: ("sync_turn", _turn),
    NoteWritten: ("on_memory_write", _note),
    WorkDelegated: ("on_delegation", _delegated),
    SessionRewound: ("on_session_switch", _rewound),
    SessionClosed: ("on_session_end", _closed),
    Forgotten: ("forget", _forgotten),
}
"""The hook and the argument adapter of each event type."""


def is_outdated(metadata: Mapping[str, Any]) -> bool:
    """Return True if the metadata of `on_memory_write` describes a note that was changed or removed since.

    Sessions do not wait for each other: storing an outdated version may bring back removed text.
    """
    return int(metadata.get("newest", 0)) > int(metadata.get("version", 0))


def overrides(provider: MemoryProvider, hook: str) -> bool:
    """Return True if the provider overrides this hook."""
    return getattr(type(provider), hook, None) is not getattr(MemoryProvider, hook)


def receives_events(provider: MemoryProvider) -> bool:
    """Return True if the provider overrides any hook for log entries; otherwise it gets none and has no cursors."""
    return any(overrides(provider, hook) for hook, _ in HOOK_OF.values())
