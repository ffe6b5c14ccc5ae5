"""Mem0 as a memory: its library on this machine, or its platform. A model draws facts from each turn, or none does.

A person is a user of Mem0's, a session is a run. Metadata say which entry of which session something comes from, so
that what comes twice is there once, and what is recalled leads back. See docs/how-to/memory/mem0.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everthread.adapters.memory.common.http import Sleep
from everthread.adapters.memory.common.tools import Question, Questions, listed
from everthread.adapters.memory.mem0.codec import (
    NOTE,
    OPENED,
    Entry,
    Memories,
    delegation_entry,
    note_entry,
    opened_entry,
    recalled,
    turn_entry,
    turn_key,
    version_of,
)
from everthread.domain.errors import BadConfig, ProviderError, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Cause, Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

MEM0 = "mem0"
QUERY_CHARS_MAX = 2_000
RESULTS_MAX = 100
PROFILE_MAX = 50

_SEARCH, _PROFILE = "mem0_search", "mem0_profile"
_TOOLS = (
    Question(_SEARCH, "Search what is remembered of this user, from all their conversations.", "query"),
    Question(_PROFILE, "What is remembered of this user, without a question: up to 50 facts and notes."),
)


class Mem0(MemoryProvider):
    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = MEM0
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._questions = Questions(self.name, _TOOLS, chars_max=QUERY_CHARS_MAX)
        self._infer = True
        self._open: Memories | None = None

    async def initialize(
        self, *, mode: str = "library", infer: bool = True, profile: str = "main", **settings: Any
    ) -> None:
        """No platform and no model is asked for anything yet: what is down now may be up for the first entry."""
        await self.shutdown()
        self._infer = infer
        # Each is imported by those who use it.
        if mode == "platform":
            self._open = _platform(self.name, profile, self._sleep, **settings)
        elif mode == "library":
            self._open = _library(self.name, **settings)
        else:
            raise BadConfig(f"{self.name}: there is no mode {mode[:40]!r}; use library or platform")
        await self._open.begin()

    async def shutdown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.aclose()

    # What is told -----------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        turn = int(more.get("turn") or delivery.seq)
        entry = turn_entry(
            *(ref.session_id, turn, user, assistant, more.get("at")), infer=self._infer, attempt=delivery.attempt
        )
        await self._keep(ref, entry)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._keep(ref, delegation_entry(ref.session_id, delivery.seq, task, result))

    async def on_session_switch(
        self, new_session_id: str, *, parent_session_id: str = "", ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        if more.get("rewound"):
            for turn in more.get("turns", ()):
                await self._remove(ref.owner, session=ref.session_id, entry=turn_key(turn))
        elif parent_session_id and more.get("reason") != Cause.RESUME:
            # Who resumes a session comes from another one, which is no parent of it.
            await self._keep(ref, opened_entry(ref.session_id, parent_session_id))

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        await self._memories.close(ref.owner, ref.session_id)

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
        """A note's newest wording takes the place of what it said before, in whichever session that was."""
        if is_outdated(metadata):
            return
        note_id, version = str(metadata.get("note_id", "")), int(metadata.get("version", 0))
        entry = note_entry(ref.session_id, note_id, version, content, metadata.get("at"))
        before = await self._memories.listed(ref.owner, RESULTS_MAX, kind=NOTE, note=note_id)
        if any(version_of(one) > version for one in before):
            # Sessions do not wait for each other: this one comes late.
            return
        if action != "remove":
            await self._keep(ref, entry)
        old = [one.id for one in before if action == "remove" or one.about.get("entry") != entry.key]
        await self._memories.remove(ref.owner, old)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        match scope:
            case ForgetScope.SESSION:
                await self._memories.forget_session(ref.owner, ref.session_id)
            case ForgetScope.OWNER:
                await self._memories.forget_person(ref.owner)
            case ForgetScope.FACT:
                if note_id:
                    await self._remove(ref.owner, kind=NOTE, note=note_id)
                if text.strip():
                    await self._memories.forget_words(ref.owner, text)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        asked, most = query.strip()[:QUERY_CHARS_MAX], min(limit, RESULTS_MAX)
        if not asked or most < 1:
            return ()
        return recalled(await self._memories.search(ref.owner, asked, most), most)

    async def health(self) -> str:
        try:
            await self._memories.check()
        except ProviderError as error:
            return str(error)
        return "ok"

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._questions.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Each acts on the person of its own turn."""
        words = self._questions.words(name, args)
        if name == _PROFILE:
            known = await self._memories.listed(ref.owner, PROFILE_MAX)
            return listed((one.memory for one in known if one.kind != OPENED), "Nothing is known yet.")
        return listed(item.text for item in await self.prefetch(words, ref=ref, limit=10))

    # ------------------------------------------------------------------------------------------------------------------

    async def _keep(self, ref: SessionRef, entry: Entry) -> None:
        if entry.messages:
            await self._memories.add(ref.owner, entry)

    async def _remove(self, owner: str, **about: str | int) -> None:
        while found := await self._memories.listed(owner, RESULTS_MAX, **about):
            await self._memories.remove(owner, [one.id for one in found])

    @property
    def _memories(self) -> Memories:
        if self._open is None:
            raise Unavailable(self.name, "is shut down")
        return self._open


def _platform(provider: str, profile: str, sleep: Sleep, *, url: str, api_key: str = "", **settings: Any) -> Memories:
    from everthread.adapters.memory.common.http import Wire  # noqa: PLC0415
    from everthread.adapters.memory.mem0.cloud_client import Platform  # noqa: PLC0415

    if not api_key:
        raise BadConfig(f"{provider}: the platform wants a key; put MEM0_API_KEY=... into the home's .env")
    return Platform(provider, Wire(provider, url, key=api_key, scheme="Token"), f"everthread-{profile}", sleep)


def _library(
    provider: str,
    *,
    folder: Path | str,
    model: str = "",
    model_url: str = "",
    model_key: str = "",
    embedder: str = "",
    embedder_url: str = "",
    embedder_key: str = "",
    python: str = "",
    **settings: Any,
) -> Memories:
    from everthread.adapters.memory.mem0.local_client import REQUEST_S_MAX, Endpoint, Library, Told  # noqa: PLC0415

    # A key goes to its own endpoint, and to no other.
    near = Endpoint(embedder, embedder_url, embedder_key) if embedder_url else Endpoint(embedder, model_url, model_key)
    told = Told(str(folder), Endpoint(model, model_url, model_key), near, REQUEST_S_MAX)
    return Library(provider, told, python)
