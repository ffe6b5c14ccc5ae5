"""The contract of a memory provider.

A provider is one instance per profile and serves many sessions at once. It keeps no session of its own: every hook
that concerns a session is handed a `ref` (whose, which session, as of when) and, where something is written, a
`delivery` (idempotency key, attempt, replay). Hooks are async functions, or plain ones that run in threads.
Every hook is optional; what is not overridden does nothing.
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
    """What a provider declares that it can do; nobody probes for it."""

    NONE = 0
    RECALL = auto()
    FORGET = auto()
    HEALTH = auto()
    DEDUPLICATES = auto()


class Scorecard(Struct, frozen=True):
    """What a provider promises: `done`, or why it is exempt."""

    redelivery: str
    order: str
    forget: str


class RecallItem(Struct, frozen=True):
    """One thing that memory returns, with where it came from."""

    text: str
    score: float = 0.0
    provider: str = ""
    session_id: str = ""
    turn: int | None = None
    at: float | None = None
    also: tuple[str, ...] = ()
    """Other providers that returned the same; filled in where answers are merged."""


Returned = Awaitable[None] | None


@dataclass
class MemoryProvider:
    """Derive from this, set `name`, and override what you need."""

    name: str = field(default="", init=False)
    capabilities: Capability = field(default=Capability.NONE, init=False)
    scorecard: Scorecard = field(
        default=Scorecard("not declared", "not declared", "not declared"), init=False, repr=False
    )

    def initialize(self, **settings: Any) -> Returned:
        """Once, before anything else."""

    def system_prompt_block(self, *, ref: SessionRef) -> str:
        return ""

    def prefetch(
        self, query: str, *, ref: SessionRef, limit: int
    ) -> Awaitable[Sequence[RecallItem]] | Sequence[RecallItem]:
        """What is remembered of the ref's owner for this query."""
        return ()

    def queue_prefetch(self, query: str, *, ref: SessionRef) -> Returned:
        """The next turn will probably ask for this."""

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> Returned:
        """A committed turn. `more` has `messages`, `turn` (its number), `status` and `at`."""

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> Awaitable[str] | str:
        raise LookupError(f"{self.name} has no tool {name!r}")

    def on_turn_start(self, user: str, *, ref: SessionRef) -> Returned: ...

    def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> Returned:
        """Everything before this was handed over. `more` has `through_seq`, `missing` and `view` (the turns)."""

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
        """A session was opened (`reason`), or some of its turns were taken back (`rewound=True`, `turns`)."""

    def on_pre_compress(self, messages: Sequence[Message], *, ref: SessionRef) -> Awaitable[str] | str:
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
        """A note was written, changed or removed. `metadata` has `note_id`, `version`, `turn_id`, `at` and `newest`."""

    def on_delegation(
        self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> Returned: ...

    def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> Returned: ...

    def health(self) -> Awaitable[str] | str:
        """ "ok", or what is wrong."""
        return "ok"

    def shutdown(self) -> Returned: ...

    def deliver(self, event: Event, delivery: Delivery) -> Returned:
        """Hand one event to its hook."""
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
"""Which hook an event goes to, and how: the only place that knows."""


def is_outdated(metadata: Mapping[str, Any]) -> bool:
    """Of what `on_memory_write` is handed: whether the note reads otherwise by now, or is removed.

    Sessions do not wait for each other. Who writes it down all the same may bring back what was removed.
    """
    return int(metadata.get("newest", 0)) > int(metadata.get("version", 0))


def has(provider: MemoryProvider, hook: str) -> bool:
    """Whether the provider brings this hook itself."""
    return getattr(type(provider), hook, None) is not getattr(MemoryProvider, hook)


def is_told(provider: MemoryProvider) -> bool:
    """Whether it has any hook for what stands in the logs; one that has none is told nothing, and keeps nothing."""
    return any(has(provider, hook) for hook, _ in HOOK_OF.values())
