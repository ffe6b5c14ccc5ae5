"""Memory provider that runs an unmodified memory plugin of Hermes Agent, each user's in a child process.

The plugin runs under an interpreter that has `hermes-agent`. An instance of a plugin holds one session, so each session
has its own; see `plugin_host.py`. Plugins know no delivery keys and can't forget: docs/how-to/memory/hermes-plugins.md
says what can't be guaranteed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everthread.adapters.memory.hermes_bridge.acknowledged import DeliveryLog
from everthread.adapters.memory.hermes_bridge.child_process import PluginFailed
from everthread.adapters.memory.hermes_bridge.codec import openai_message, recall_items
from everthread.adapters.memory.hermes_bridge.plugin_home import PluginHomes, expand_path
from everthread.adapters.memory.hermes_bridge.user_plugin import PluginCall, UserPlugin
from everthread.domain.errors import EverthreadError, Rejected, ToolFailed, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard

PREFIX = "hermes:"
USERS_MAX = 4
"""Processes at once; the one idle longest is stopped for another user."""


class HermesBridge(MemoryProvider):
    def __init__(
        self,
        plugin: str,
        *,
        new_process_id: Callable[[], str] = lambda: uuid.uuid4().hex,  # noqa: TID251 - providers are made without a source of ids
    ) -> None:
        super().__init__()
        self.name = f"{PREFIX}{plugin}"
        self.capabilities = Capability.RECALL | Capability.HEALTH
        self.scorecard = Scorecard(
            redelivery="exempt: what a plugin has acknowledged is written down and not told again, but plugins know no "
            "keys: what one did in a call that was killed, and what it held when its process died, may be told twice",
            order="done",
            forget="exempt: plugins have no hook for it; tools that some have delete one thing by a number of the back "
            "end's, and of what was told nobody knows that number; it has to be deleted where the plugin keeps it",
        )
        self._plugin = plugin
        self._new_process_id = new_process_id
        self._owner = ""
        self._homes: PluginHomes | None = None
        self._python = Path()
        self._deliveries: DeliveryLog | None = None
        self._users: dict[str, UserPlugin] = {}
        self._context: dict[str, Any] = {}
        self._hooks: frozenset[str] = frozenset()
        self._tools: tuple[Mapping[str, Any], ...] = ()

    async def initialize(
        self,
        *,
        folder: Path | str,
        python: str = "",
        home: str = "",
        people: str = "one",
        owner: str = "",
        template: str = "",
        profile: str = "main",
        **settings: Any,
    ) -> None:
        """Start the owner's plugin, to learn its hooks and tools."""
        await self.shutdown()
        folder = Path(folder)
        self._homes = PluginHomes(folder, home, owner, for_each=people == "each", template=template)
        self._python = expand_path(python)
        self._owner = owner
        self._context = {"agent_identity": profile, "agent_workspace": "everthread"}
        self._deliveries = DeliveryLog(folder / "told.db")
        greeting = await (await self._user(owner)).greet()
        self._hooks, self._tools = frozenset(greeting.hooks), greeting.tools

    async def shutdown(self) -> None:
        people, self._users = self._users, {}
        deliveries, self._deliveries = self._deliveries, None
        try:
            for user in people.values():
                await user.aclose()
        finally:
            if deliveries is not None:
                deliveries.close()

    # Log entries ------------------------------------------------------------------------------------------------------

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
        named: dict[str, Any] = {"parent_session_id": parent_session_id, "reset": reset}
        if more.get("rewound"):
            named["rewound"] = True
        if more.get("reason"):
            named["reason"] = more["reason"]
        may_buffer = bool(more.get("rewound"))
        await self._deliver(ref, delivery, "on_session_switch", ref.session_id, named=named, may_buffer=may_buffer)

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        named = {"session_id": ref.session_id, "messages": [openai_message(m) for m in more.get("messages", ())]}
        await self._deliver(ref, delivery, "sync_turn", user, assistant, named=named)

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
        named = {"metadata": {**metadata, "session_id": ref.session_id, "platform": ref.key.platform}}
        await self._deliver(ref, delivery, "on_memory_write", action, target, content, named=named)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        named = {"child_session_id": str(more.get("child_session_id", ""))}
        await self._deliver(ref, delivery, "on_delegation", task, result, named=named)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """End the session and shut its instance down, so that nothing stays buffered."""
        await self._deliver(ref, delivery, "on_session_end", [openai_message(m) for m in messages], closes=True)

    # Queries ----------------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return recall_items(await self._query(ref, "prefetch", query, session_id=ref.session_id), limit)

    async def queue_prefetch(self, query: str, *, ref: SessionRef) -> None:
        await self._query(ref, "queue_prefetch", query, session_id=ref.session_id)

    async def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        await self._query(ref, "on_turn_start", user, platform=ref.key.platform)

    async def system_prompt_block(self, *, ref: SessionRef) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return await self._query(ref, "system_prompt_block")

    async def on_pre_compress(self, messages: Sequence[Message], *, ref: SessionRef) -> str:
        return await self._query(ref, "on_pre_compress", [openai_message(m) for m in messages])

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._tools

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        if name not in {str(schema.get("name", "")) for schema in self._tools}:
            raise LookupError(f"{self.name} has no tool {name!r}")
        try:
            user = await self._user(ref.owner)
            named = {"session_id": ref.session_id}
            return await user.query(self._hook_call(ref, "handle_tool_call", name, dict(args), named=named))
        except (PluginFailed, Rejected) as error:
            raise ToolFailed(str(error)) from None

    async def health(self) -> str:
        try:
            await (await self._user(self._owner)).greet()
        except EverthreadError as error:
            return str(error)
        return "ok"

    # ------------------------------------------------------------------------------------------------------------------

    def _hook_call(self, ref: SessionRef, hook: str, *args: Any, **more: Any) -> PluginCall:
        return PluginCall(ref.session_id, hook, args, context=_session_context(ref), **more)

    async def _deliver(self, ref: SessionRef, delivery: Delivery, hook: str, *args: Any, **more: Any) -> None:
        user, call = await self._user(ref.owner), self._hook_call(ref, hook, *args, **more)
        # A close shuts the instance down even if the plugin lacks the hook.
        if call.hook in self._hooks or call.closes:
            await user.deliver(call, delivery)

    async def _query(self, ref: SessionRef, hook: str, *args: Any, **named: Any) -> str:
        if hook not in self._hooks or self._homes is None or not self._homes.serves(ref.owner):
            return ""
        user = await self._user(ref.owner)
        try:
            return await user.query(self._hook_call(ref, hook, *args, named=named))
        except PluginFailed as error:
            raise Unavailable(self.name, str(error)) from None

    async def _user(self, owner: str) -> UserPlugin:
        if self._homes is None or self._deliveries is None:
            raise Unavailable(self.name, "is shut down")
        if not self._homes.serves(owner):
            raise Rejected(
                self.name,
                f"is {self._owner}'s alone, since not every plugin keeps users apart; if this one does, set "
                'memory.hermes.people = "each"',
            )
        if owner not in self._users:
            await self._stop_idle()
        if owner not in self._users:
            self._users[owner] = UserPlugin(
                self.name,
                self._plugin,
                self._python,
                self._homes.prepare(owner),
                self._deliveries,
                self._new_process_id,
                {**self._context, "user_id": owner},
            )
        return self._users[owner]

    async def _stop_idle(self) -> None:
        idle = sorted((o for o, p in self._users.items() if p.is_idle), key=lambda o: self._users[o].used_at)
        for owner in idle[: max(len(self._users) - USERS_MAX + 1, 0)]:
            await self._users.pop(owner).aclose()


def _session_context(ref: SessionRef) -> dict[str, Any]:
    key = ref.key
    context = {
        "platform": key.platform,
        "chat_id": key.chat,
        "chat_type": key.chat_type.value,
        "gateway_session_key": str(key),
    }
    return context | ({"thread_id": key.thread} if key.thread else {})
