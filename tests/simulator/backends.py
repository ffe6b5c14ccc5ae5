"""Back ends of memory providers, and providers with the faults of networks and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from tests.simulator.environment import Faults, SimProcess


@dataclass(frozen=True, slots=True)
class Effect:
    """An entry stored by a back end: hook, session ref and facts."""

    kind: str
    ref: SessionRef
    delivery: Delivery
    facts: dict[str, Any]


class Backend:
    """Back end of a provider. It outlives every process and deduplicates by delivery key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.effects: list[Effect] = []
        self.keys: set[str] = set()
        self.rejected: set[str] = set()
        self.attempts = 0

    def apply(self, effect: Effect) -> None:
        if effect.delivery.key not in self.keys:
            self.keys.add(effect.delivery.key)
            self.effects.append(effect)


class SimProvider(MemoryProvider):
    """Provider in one process, with faults of networks and servers."""

    def __init__(
        self, backend: Backend, process: SimProcess, faults: Faults, began: Callable[[str, str], None]
    ) -> None:
        super().__init__()
        self.name = backend.name
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.DEDUPLICATES
        self.scorecard = Scorecard("done", "done", "done")
        self._backend = backend
        self._process = process
        self._faults = faults
        self._began = began

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        await self._process.pause()
        return (RecallItem(f"for {ref.session_id} of {ref.owner}"),)

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._take("turn", ref, delivery, text=user, number=more["turn"])

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
        if more.get("rewound"):
            await self._take("rewind", ref, delivery, turns=more["turns"])
        else:
            facts = {"parent": parent_session_id, "reset": reset, "reason": more["reason"]}
            await self._take("opened", ref, delivery, id=new_session_id, **facts)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        shown = tuple(turn.user_text for turn in more["view"].turns)
        await self._take("close", ref, delivery, shown=shown, missing=more["missing"])

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
        await self._take("note", ref, delivery, text=content, note=metadata["note_id"], version=metadata["version"])

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._take("delegation", ref, delivery, text=task)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        await self._take("forget", ref, delivery, scope=scope.value, text=text, note=note_id)

    async def _take(self, kind: str, ref: SessionRef, delivery: Delivery, **facts: Any) -> None:
        self._began(self.name, self._process.name)
        self._backend.attempts += 1
        waiting = self._faults.provider.get(self.name)
        fault = waiting.pop() if waiting else ""
        if fault:
            self._faults.hit[f"provider {fault}"] += 1
        if fault not in ("", "slow") and kind in ("opened", "close", "rewind", "forget"):
            self._faults.coverage.delivery_failed(ref.session_id)
        await self._process.pause()
        await self._fail_before(fault, delivery)
        self._backend.apply(Effect(kind, ref, delivery, facts))
        if fault == "lost":
            raise Unavailable(self.name, "simulated lost acknowledgement")
        await self._process.pause()

    async def _fail_before(self, fault: str, delivery: Delivery) -> None:
        if fault == "error":
            raise Unavailable(self.name, "simulated outage")
        if fault == "hang":
            await asyncio.get_running_loop().create_future()
        if fault == "bug":
            raise ValueError("simulated bug")
        if fault == "slow":
            await asyncio.sleep(self._process.random.uniform(0.5, 4.0))
            self._process.check()
        if fault == "reject" and delivery.key not in self._backend.keys:
            self._backend.rejected.add(delivery.key)
            raise Rejected(self.name, "simulated rejection")
