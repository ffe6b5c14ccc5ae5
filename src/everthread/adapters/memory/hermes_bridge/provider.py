"""Any memory plugin of Hermes Agent's as a memory, unmodified, in a process of its own for each person.

The plugin runs under the interpreter of an environment that has `hermes-agent`. It holds one session at a time, so
each session has an instance of its own there; see `plugin_host.py` for that side, and
docs/how-to/memory/hermes-plugins.md for what can't be promised of plugins that know no delivery keys and can't forget.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everthread.adapters.memory.hermes_bridge.acknowledged import Ledger
from everthread.adapters.memory.hermes_bridge.child_process import Failed
from everthread.adapters.memory.hermes_bridge.codec import as_openai, recalled
from everthread.adapters.memory.hermes_bridge.plugin_home import Homes, located
from everthread.adapters.memory.hermes_bridge.user_plugin import Call, Person
from everthread.domain.errors import EverthreadError, Rejected, ToolFailed, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard

PREFIX = "hermes:"
PEOPLE_MAX = 4
"""Processes at once; whose was idle longest is ended for another."""


class HermesBridge(MemoryProvider):
    def __init__(
        self,
        plugin: str,
        *,
        new_life: Callable[[], str] = lambda: uuid.uuid4().hex,  # noqa: TID251 - providers are made without such things
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
        self._new_life = new_life
        self._owner = ""
        self._homes: Homes | None = None
        self._python = Path()
        self._ledger: Ledger | None = None
        self._people: dict[str, Person] = {}
        self._told: dict[str, Any] = {}
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
        """Starts the plugin once, to see what it has. `owner` is the person whose plugin it is."""
        await self.shutdown()
        folder = Path(folder)
        self._homes = Homes(folder, home, owner, for_each=people == "each", template=template)
        self._python = located(python)
        self._owner = owner
        self._told = {"agent_identity": profile, "agent_workspace": "everthread"}
        self._ledger = Ledger(folder / "told.db")
        greeting = await (await self._person(owner)).hello()
        self._hooks, self._tools = frozenset(greeting.hooks), greeting.tools

    async def shutdown(self) -> None:
        people, self._people = self._people, {}
        ledger, self._ledger = self._ledger, None
        try:
            for person in people.values():
                await person.aclose()
        finally:
            if ledger is not None:
                ledger.close()

    # What is told -----------------------------------------------------------------------------------------------------

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
        told = self._of(ref, "on_session_switch", ref.session_id, named=named, holds=bool(more.get("rewound")))
        await self._tell(told, ref, delivery)

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        named = {"session_id": ref.session_id, "messages": [as_openai(m) for m in more.get("messages", ())]}
        await self._tell(self._of(ref, "sync_turn", user, assistant, named=named), ref, delivery)

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
        await self._tell(self._of(ref, "on_memory_write", action, target, content, named=named), ref, delivery)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        named = {"child_session_id": str(more.get("child_session_id", ""))}
        await self._tell(self._of(ref, "on_delegation", task, result, named=named), ref, delivery)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """The session's instance is let go as well: what it kept back is out then, and a session that goes on has
        another.
        """
        told = self._of(ref, "on_session_end", [as_openai(m) for m in messages], leaves=True)
        await self._tell(told, ref, delivery)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        return recalled(await self._ask(ref, "prefetch", query, session_id=ref.session_id), limit)

    async def queue_prefetch(self, query: str, *, ref: SessionRef) -> None:
        await self._ask(ref, "queue_prefetch", query, session_id=ref.session_id)

    async def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        await self._ask(ref, "on_turn_start", user, platform=ref.key.platform)

    async def system_prompt_block(self, *, ref: SessionRef) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return await self._ask(ref, "system_prompt_block")

    async def on_pre_compress(self, messages: Sequence[Message], *, ref: SessionRef) -> str:
        return await self._ask(ref, "on_pre_compress", [as_openai(m) for m in messages])

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._tools

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        if name not in {str(schema.get("name", "")) for schema in self._tools}:
            raise LookupError(f"{self.name} has no tool {name!r}")
        try:
            person = await self._person(ref.owner)
            named = {"session_id": ref.session_id}
            return await person.ask(self._of(ref, "handle_tool_call", name, dict(args), named=named))
        except (Failed, Rejected) as error:
            raise ToolFailed(str(error)) from None

    async def health(self) -> str:
        try:
            await (await self._person(self._owner)).hello()
        except EverthreadError as error:
            return str(error)
        return "ok"

    # ------------------------------------------------------------------------------------------------------------------

    def _of(self, ref: SessionRef, hook: str, *args: Any, **more: Any) -> Call:
        return Call(ref.session_id, hook, args, opens=_opens(ref), **more)

    async def _tell(self, call: Call, ref: SessionRef, delivery: Delivery) -> None:
        person = await self._person(ref.owner)
        # A hook that it lacks has nothing to tell, but a close also lets go.
        if call.hook in self._hooks or call.leaves:
            await person.tell(call, delivery)

    async def _ask(self, ref: SessionRef, hook: str, *args: Any, **named: Any) -> str:
        if hook not in self._hooks or self._homes is None or not self._homes.has(ref.owner):
            return ""
        person = await self._person(ref.owner)
        try:
            return await person.ask(self._of(ref, hook, *args, named=named))
        except Failed as error:
            raise Unavailable(self.name, str(error)) from None

    async def _person(self, owner: str) -> Person:
        if self._homes is None or self._ledger is None:
            raise Unavailable(self.name, "is shut down")
        if not self._homes.has(owner):
            raise Rejected(
                self.name,
                f"is {self._owner}'s alone, since not every plugin keeps people apart; if this one does, set "
                'memory.hermes.people = "each"',
            )
        if owner not in self._people:
            await self._make_room()
        if owner not in self._people:
            self._people[owner] = Person(
                self.name,
                self._plugin,
                self._python,
                self._homes.of(owner),
                self._ledger,
                self._new_life,
                {**self._told, "user_id": owner},
            )
        return self._people[owner]

    async def _make_room(self) -> None:
        idle = sorted((o for o, p in self._people.items() if p.is_idle), key=lambda o: self._people[o].used_at)
        for owner in idle[: max(len(self._people) - PEOPLE_MAX + 1, 0)]:
            await self._people.pop(owner).aclose()


def _opens(ref: SessionRef) -> dict[str, Any]:
    key = ref.key
    told = {
        "platform": key.platform,
        "chat_id": key.chat,
        "chat_type": key.chat_type.value,
        "gateway_session_key": str(key),
    }
    return told | ({"thread_id": key.thread} if key.thread else {})
