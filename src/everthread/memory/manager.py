"""`MemoryManager`: call any number of providers, and keep the failure of one from the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from everthread.domain.errors import BadInput, StoreError
from everthread.domain.model import Message, SessionRef
from everthread.log_context import Private
from everthread.memory.backfill import Backfill
from everthread.memory.circuit_breaker import RecallBreakers
from everthread.memory.delivery import DeliveryService
from everthread.memory.delivery_results import Limits
from everthread.memory.legacy_providers import as_provider
from everthread.memory.provider_calls import Caller
from everthread.memory.recall import Recall, gather
from everthread.ports.clock import Clock
from everthread.ports.lanes import Lanes
from everthread.ports.memory import Capability, RecallItem
from everthread.store.recall_scope import DEFAULT_RECALL_SCOPES, RecallScopes
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.memory")

RECALL_S_MAX = 2.0
RECALL_TOKENS_MAX = 1500
RECALL_ITEMS_MAX = 10
HOOK_S_MAX = 5.0
TOOL_S_MAX = 30.0
NOTICES_MAX = 256
"""Calls of notice hooks in flight, for all providers together. A provider that hangs holds each for `HOOK_S_MAX`."""

NOTICE_HOOKS = ("on_turn_start", "queue_prefetch")


class MemoryManager:
    """Everything the agent reads from memory. What it writes goes through the sessions' logs and `journal`."""

    def __init__(
        self,
        providers: Sequence[object],
        store: Store,
        clock: Clock,
        lanes: Lanes,
        *,
        random: Callable[[], float],
        limits: Limits | None = None,
        settings: Mapping[str, dict[str, Any]] | None = None,
        scopes: RecallScopes = DEFAULT_RECALL_SCOPES,
    ) -> None:
        adapted = [as_provider(provider) for provider in providers]
        names = [provider.name for provider in adapted]
        if len(set(names)) < len(names) or not all(names):
            raise BadInput(f"every memory provider needs a name of its own; the names are {names}")
        self._callers = {p.name: Caller(p, (settings or {}).get(p.name)) for p in adapted}
        self._callers_by_hook = {hook: [c for c in self._callers.values() if c.has(hook)] for hook in NOTICE_HOOKS}
        self._notices: set[asyncio.Task[None]] = set()
        self._store = store
        self._clock = clock
        self._lanes = lanes
        self._scopes = scopes
        self._recall_breakers = RecallBreakers()
        self.journal = DeliveryService(
            store,
            clock,
            self._callers,
            random=random,
            wake=lambda provider: lanes.wake(lane_name(provider)),
            limits=limits,
        )
        self.backfill = Backfill(store, self.journal)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._callers)

    async def start(self) -> None:
        """Register the providers and serve their lanes. Does not wait for any provider."""
        await self.journal.register()
        for name in self.journal.receivers:
            self._lanes.serve(lane_name(name), partial(self.journal.drain, name))

    async def recall(
        self,
        query: str,
        *,
        ref: SessionRef,
        deadline_s: float = RECALL_S_MAX,
        budget_tokens: int = RECALL_TOKENS_MAX,
    ) -> Recall:
        """Ask the providers for memories of the ref's owner. The result carries the ref that it was made for.

        In a group chat, only providers that filter by conversation are asked.
        """
        now = self._clock.elapsed
        recalling = [c for c in self._callers.values() if Capability.RECALL in c.provider.capabilities]
        able = await self._working_callers(await self._askable_callers(recalling, ref))
        asked = [caller for caller in able if self._recall_breakers.may_ask((caller.name, caller.is_ready), now())]
        ask = {caller.name: partial(_ask, caller, query, ref, deadline_s) for caller in asked}
        recall = await gather(ref, ask, deadline_s=deadline_s, budget_tokens=budget_tokens)
        for caller in asked:
            if caller.name in recall.late:
                self._recall_breakers.record_timeout((caller.name, caller.is_ready), now())
            elif caller.name in recall.missing:
                self._recall_breakers.record_failure((caller.name, caller.is_ready), now())
            else:
                self._recall_breakers.record_success((caller.name, True))
        paused = tuple(caller.name for caller in able if caller.name not in ask)
        return replace(recall, missing=(*recall.missing, *paused)) if paused else recall

    async def system_prompt_blocks(self, *, ref: SessionRef) -> tuple[str, ...]:
        """Return the prompt blocks of the providers that may be asked in this session."""
        asked = await self._working_callers(await self._askable_callers(self._having("system_prompt_block"), ref))
        found = await self._call_all(asked, "system_prompt_block", ref=ref)
        return tuple(block for block in found.values() if block)

    @property
    def wants_turn_starts(self) -> bool:
        """True if a provider overrides `on_turn_start`."""
        return bool(self._callers_by_hook["on_turn_start"])

    def turn_started(self, user: str, *, ref: SessionRef) -> None:
        """Call `on_turn_start` in the background."""
        self._notify("on_turn_start", user, ref)

    def turn_committed(self, query: str, *, ref: SessionRef) -> None:
        """Call `queue_prefetch` in the background: the next turn will probably recall something similar."""
        self._notify("queue_prefetch", query, ref)

    def _notify(self, hook: str, text: str, ref: SessionRef) -> None:
        """Call a hook of the providers that override it, without making the caller wait."""
        callers = self._callers_by_hook[hook]
        if callers and len(self._notices) >= NOTICES_MAX:
            log.warning("%s is not called: %d earlier calls have not returned", hook, len(self._notices))
        elif callers:
            task = asyncio.ensure_future(self._call_notice(callers, hook, text, ref))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _call_notice(self, callers: list[Caller], hook: str, text: str, ref: SessionRef) -> None:
        try:
            if hook == "queue_prefetch":
                callers = await self._askable_callers(callers, ref)
            await self._call_all(await self._working_callers(callers), hook, text, ref=ref)
        except StoreError as error:
            log.warning("%s is not called: %s", hook, error)

    async def on_pre_compress(self, messages: Sequence[Message], *, ref: SessionRef) -> tuple[str, ...]:
        asked = await self._working_callers(await self._askable_callers(self._having("on_pre_compress"), ref))
        found = await self._call_all(asked, "on_pre_compress", messages, ref=ref)
        return tuple(text for text in found.values() if text)

    async def tool_schemas(self) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """Return the tools of each provider; a provider that fails is missing from the result."""
        found = await self._call_all(self._callers.values(), "get_tool_schemas")
        without_tools = {name: () for name, caller in self._callers.items() if not caller.has("get_tool_schemas")}
        return without_tools | {name: tuple(schemas) for name, schemas in found.items() if _are_schemas(schemas)}

    async def handle_tool_call(self, provider: str, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        caller = self._callers[provider]
        if not await self._askable_callers([caller], ref):
            raise BadInput(f"{provider} can't be asked in a group: its memory is not limited to one conversation")
        return await _call_within(caller, TOOL_S_MAX, "handle_tool_call", name, args, ref=ref)

    def filters_by_conversation(self, provider: str) -> bool:
        """Return true if the provider may be asked in group chats."""
        return Capability.GROUPS in self._callers[provider].provider.capabilities

    async def _askable_callers(self, callers: Sequence[Caller], ref: SessionRef) -> list[Caller]:
        """Return the callers that may be asked in this session. Others would answer a group from private chats."""
        if not callers or not self._scopes.is_limited(ref):
            return list(callers)
        scope = await self._store.read_inline(lambda uow: self._scopes.of(uow, ref))
        return [c for c in callers if not scope.in_group or Capability.GROUPS in c.provider.capabilities]

    async def health(self) -> dict[str, str]:
        """Return each provider's own health report, or "no answer"."""
        found = await self._call_all(self._callers.values(), "health")
        return {
            name: found.get(name, "ok" if not caller.has("health") else "no answer")
            for name, caller in self._callers.items()
        }

    async def shutdown(self) -> None:
        """Stop delivery and shut the providers down. Undelivered entries are delivered after the next start."""
        for task in self._notices:
            task.cancel()
        if self._notices:
            await asyncio.wait(self._notices)
        await self.journal.stop()
        await self._call_all(self._callers.values(), "shutdown")

    def _having(self, hook: str) -> list[Caller]:
        return [caller for caller in self._callers.values() if caller.has(hook)]

    async def _working_callers(self, callers: Iterable[Caller]) -> list[Caller]:
        """Return the callers whose breaker is closed. A provider without deliveries has no breaker."""
        now, breakers = self._clock.now(), self.journal.breakers
        asked = [caller for caller in callers if breakers.open_until(caller.name, now) is None]
        if not any(caller.receives_log for caller in asked):
            return asked
        rows = await self._store.read_inline(lambda uow: uow.cursors.providers())
        breakers.update(rows)
        return [caller for caller in asked if breakers.open_until(caller.name, now) is None]

    async def _call_all(self, callers: Iterable[Caller], hook: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call a hook of every provider that has it, concurrently. A provider that fails is missing from the result."""
        having = [caller for caller in callers if caller.has(hook)]
        calls: list[Awaitable[Any]] = [self._call_and_log(caller, hook, *args, **kwargs) for caller in having]
        results = await asyncio.gather(*calls)
        return {caller.name: result for caller, result in zip(having, results, strict=True) if result is not None}

    async def _call_and_log(self, caller: Caller, hook: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await _call_within(caller, HOOK_S_MAX, hook, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - one provider's failure is logged and affects no other
            log.warning("%s: %s failed: %s", caller.name, hook, Private(error))
            return None


def lane_name(provider: str) -> str:
    return f"journal:{provider}"


async def _ask(caller: Caller, query: str, ref: SessionRef, deadline_s: float) -> Sequence[RecallItem]:
    return await _call_within(caller, deadline_s, "prefetch", query, ref=ref, limit=RECALL_ITEMS_MAX)


async def _call_within(caller: Caller, timeout_s: float, hook: str, *args: Any, **kwargs: Any) -> Any:
    """Call a hook within a time limit, which includes the initialisation if it is still to do."""
    now = asyncio.get_running_loop().time
    deadline = now() + timeout_s
    if hook != "shutdown":
        await caller.ready(timeout_s)
    return await caller.call(hook, *args, timeout_s=max(deadline - now(), 0.0), **kwargs)


def _are_schemas(result: object) -> bool:
    return isinstance(result, Sequence) and all(isinstance(item, Mapping) for item in cast(Sequence[object], result))
