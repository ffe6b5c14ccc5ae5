"""Memory provider for tests: stores deliveries in memory and injects the faults of real back ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of the back end: session, kind and text."""

    session_id: str
    kind: str
    text: str
    owner: str = ""
    turn: int | None = None
    note_id: str = ""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One received call, whether or not it was stored."""

    hook: str
    ref: SessionRef
    delivery: Delivery | None = None


class RecordingProvider(MemoryProvider):
    """Native, asynchronous provider with one instance for all sessions. It deduplicates by delivery key. The methods
    below inject faults, which end after their calls or with `heal`.
    """

    def __init__(
        self,
        name: str = "recording",
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self.calls: list[RecordedCall] = []
        self.initialized = 0
        self.shut_down = 0
        self._effects: list[StoredEntry] = []
        self._seen: set[str] = set()
        self._sleep = sleep
        self._failing = 0
        self._rejecting = 0
        self._losing = 0
        self._slow_s = 0.0
        self._answering = asyncio.Event()
        self._answering.set()

    # Contents of the back end -----------------------------------------------------------------------------------------

    def effects(self, session_id: str | None = None) -> tuple[StoredEntry, ...]:
        """List effects in order of arrival."""
        return tuple(one for one in self._effects if session_id in (None, one.session_id))

    # Faults -----------------------------------------------------------------------------------------------------------

    def fail_next(self, calls: int = 1) -> None:
        """The next calls fail as unreachable; nothing is stored."""
        self._failing = calls

    def reject_next(self, calls: int = 1) -> None:
        """The next deliveries are rejected permanently; nothing is stored."""
        self._rejecting = calls

    def lose_next(self, calls: int = 1) -> None:
        """The next deliveries are stored, but the acknowledgement is lost."""
        self._losing = calls

    def hang(self) -> None:
        """Block every call until `heal`."""
        self._answering.clear()

    def slow(self, seconds: float) -> None:
        """Delay every call until `heal`."""
        self._slow_s = seconds

    def heal(self) -> None:
        self._failing = self._rejecting = self._losing = 0
        self._slow_s = 0.0
        self._answering.set()

    # Hooks ------------------------------------------------------------------------------------------------------------

    async def initialize(self, **settings: Any) -> None:
        await self._reach()
        self.initialized += 1

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        self.calls.append(RecordedCall("prefetch", ref))
        await self._reach()
        wanted = set(_words(query))
        scored = (
            (len(wanted & set(_words(one.text))), one) for one in reversed(self._effects) if one.owner == ref.owner
        )
        found = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        return tuple(
            RecallItem(one.text, float(score), self.name, one.session_id, one.turn) for score, one in found[:limit]
        )

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        effect = StoredEntry(ref.session_id, "turn", f"{user}\n{assistant}", ref.owner, more.get("turn"))
        await self._take("sync_turn", ref, delivery, lambda: self._effects.append(effect))

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        effect = StoredEntry(ref.session_id, "close", "\n".join(message.content for message in messages), ref.owner)

        def replace_last_close() -> None:
            # A later close delivers the whole transcript again and replaces the earlier one.
            self._effects = [one for one in self._effects if (one.session_id, one.kind) != (ref.session_id, "close")]
            self._effects.append(effect)

        await self._take("on_session_end", ref, delivery, replace_last_close)

    async def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        ref: SessionRef,
        delivery: Delivery,
        **more: Any,
    ) -> None:
        turns: tuple[int, ...] = tuple(more.get("turns", ()))

        def act() -> None:
            if more.get("rewound"):
                self._drop(lambda one: one.session_id == new_session_id and one.turn in turns)
            else:
                self._effects.append(StoredEntry(new_session_id, "opened", parent_session_id, ref.owner))

        await self._take("on_session_switch", ref, delivery, act)

    async def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> None:
        note_id = str(metadata.get("note_id", ""))

        def act() -> None:
            self._drop(lambda one: one.kind == "note" and one.note_id == note_id)
            if action != "remove":
                self._effects.append(StoredEntry(ref.session_id, "note", content, ref.owner, note_id=note_id))

        await self._take("on_memory_write", ref, delivery, act)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        effect = StoredEntry(ref.session_id, "delegation", f"{task}\n{result}", ref.owner)
        await self._take("on_delegation", ref, delivery, lambda: self._effects.append(effect))

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        def concerned(one: StoredEntry) -> bool:
            match scope:
                case ForgetScope.SESSION:
                    return one.session_id == ref.session_id
                case ForgetScope.OWNER:
                    return one.owner == ref.owner
                case ForgetScope.FACT:
                    says_it = bool(text) and text in one.text
                    return one.owner == ref.owner and (says_it or bool(note_id) and one.note_id == note_id)

        await self._take("forget", ref, delivery, lambda: self._drop(concerned))

    async def health(self) -> str:
        await self._reach()
        return "ok"

    async def shutdown(self) -> None:
        self.shut_down += 1

    # ------------------------------------------------------------------------------------------------------------------

    async def _reach(self) -> None:
        """Simulate the way to the back end: faults and delays of every call."""
        await self._answering.wait()
        if self._slow_s:
            await self._sleep(self._slow_s)
        if self._failing:
            self._failing -= 1
            raise Unavailable(self.name, "nobody there")

    async def _take(self, hook: str, ref: SessionRef, delivery: Delivery, act: Callable[[], None]) -> None:
        self.calls.append(RecordedCall(hook, ref, delivery))
        await self._reach()
        if self._rejecting:
            self._rejecting -= 1
            raise Rejected(self.name, "no use for this")
        if delivery.key not in self._seen:
            self._seen.add(delivery.key)
            act()
        if self._losing:
            self._losing -= 1
            raise Unavailable(self.name, "the connection broke before the answer came")

    def _drop(self, concerned: Callable[[StoredEntry], bool]) -> None:
        self._effects = [one for one in self._effects if not concerned(one)]


def _words(text: str) -> list[str]:
    return text.casefold().split()
