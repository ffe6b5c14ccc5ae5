"""Supermemory as a memory: everybody has a namespace, and each turn and note is a document in it.

The ids of documents are made from ours, so that what comes twice is the same document. What is given is queued there,
and can fail later: at each close it is looked whether all of the session was taken in. Spoken to in plain HTTP: see
docs/how-to/memory/supermemory.md for why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.adapters.memory.common.http import Sleep, Wire
from everthread.adapters.memory.common.tools import Question, Questions, listed
from everthread.adapters.memory.supermemory.client import Api, Document
from everthread.adapters.memory.supermemory.codec import (
    Page,
    delegation_page,
    is_same,
    lacking,
    note_page,
    note_page_id,
    pages_of,
    recalled,
    space,
    turn_id,
    turn_page,
    without,
)
from everthread.domain.errors import ProviderError, Rejected, Unavailable
from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

SUPERMEMORY = "supermemory"
QUERY_CHARS_MAX = 2_000
RESULTS_MAX = 100
TAKES_IN_S_MAX = 20.0

_LOOK_S = 0.5
_SEARCH, _PROFILE = "supermemory_search", "supermemory_profile"
_TOOLS = (
    Question(_SEARCH, "Search what this user said and what was noted, in all their conversations.", "query"),
    Question(_PROFILE, "What is known of this user: lasting facts, and what they are busy with."),
)


class Supermemory(MemoryProvider):
    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = SUPERMEMORY
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._questions = Questions(self.name, _TOOLS, chars_max=QUERY_CHARS_MAX)
        self._open: Api | None = None
        self._prefix = ""

    async def initialize(
        self, *, url: str, api_key: str = "", namespace: str = "", profile: str = "main", **settings: Any
    ) -> None:
        """Nothing is asked of the service yet: if it is down now, it may be up for the first entry."""
        await self.shutdown()
        self._open = Api(self.name, Wire(self.name, url, key=api_key))
        self._prefix = namespace or f"everthread-{profile}"

    async def shutdown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.aclose()

    # What is told -----------------------------------------------------------------------------------------------------

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        page = turn_page(user, assistant, ref, int(more.get("turn") or delivery.seq), more.get("at"))
        if page.content:
            await self._put(ref.owner, page)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._put(ref.owner, delegation_page(task, result, ref, delivery.seq))

    async def on_session_switch(self, new_session_id: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        """There is nothing to keep of an opening; of turns that were taken back the documents go."""
        turns: tuple[int, ...] = tuple(more.get("turns", ()))
        if more.get("rewound") and turns:
            ids = [turn_id(ref.session_id, turn) for turn in turns]
            await self._api.delete(self._space(ref.owner), ids)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        """See that everything was taken in; what failed since is given once more."""
        view: View | None = more.get("view")
        pages = pages_of(view, ref) if view is not None else ()
        if not pages:
            return
        for page in lacking(pages, await self._there(ref)):
            await self._put(ref.owner, page)
        # What is still in the queue after that is looked at by the next close: no reason to hold up what comes behind.
        if any(document.has_failed for document in await self._taken_in(ref.owner, session=ref.session_id)):
            raise Rejected(self.name, "could not take in all of a session, twice; look at its console, then retry")

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
        if is_outdated(metadata):
            return
        note_id = str(metadata.get("note_id", ""))
        if action == "remove" or not content.strip():
            await self._api.delete(self._space(ref.owner), [note_page_id(note_id)])
        else:
            await self._put(ref.owner, note_page(content, ref, note_id, metadata.get("at")))

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        match scope:
            case ForgetScope.SESSION:
                ids = [document.id for document in await self._there(ref)]
                await self._api.delete(self._space(ref.owner), ids)
            case ForgetScope.OWNER:
                await self._api.delete_space(self._space(ref.owner))
            case ForgetScope.FACT:
                await self._forget_fact(ref.owner, text, note_id)

    # What is asked ----------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        asked, most = query.strip()[:QUERY_CHARS_MAX], min(limit, RESULTS_MAX)
        if not asked or most < 1:
            return ()
        return recalled(await self._api.search(self._space(ref.owner), asked, most), most)

    async def health(self) -> str:
        try:
            await self._api.reach()
        except ProviderError as error:
            return str(error)
        return "ok"

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._questions.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Each acts on the person of its own turn."""
        words = self._questions.words(name, args)
        if name == _PROFILE:
            return "\n".join(await self._api.profile(self._space(ref.owner))) or "Nothing is known yet."
        return listed(item.text for item in await self.prefetch(words, ref=ref, limit=10))

    # ------------------------------------------------------------------------------------------------------------------

    async def _put(self, owner: str, page: Page) -> None:
        """Have the document there as it should be. Adding to one that is there would append to it: look first."""
        where = self._space(owner)
        there = await self._api.get(where, page.id)
        if there is None:
            await self._api.add(where, page.id, page.content, page.metadata)
        elif there.has_failed or not is_same(page, there):
            await self._api.replace(where, page.id, page.content, page.metadata)

    async def _there(self, ref: SessionRef) -> list[Document]:
        return await self._api.documents(self._space(ref.owner), session=ref.session_id)

    async def _taken_in(self, owner: str, *, with_content: bool = False, **metadata: str) -> list[Document]:
        """The documents, as soon as none of them waits to be taken in, or after a while."""
        waited_s = 0.0
        while True:
            documents = await self._api.documents(self._space(owner), with_content=with_content, **metadata)
            if waited_s >= TAKES_IN_S_MAX or not any(document.is_waiting for document in documents):
                return documents
            await self._sleep(_LOOK_S)
            waited_s += _LOOK_S

    async def _forget_fact(self, owner: str, fact: str, note_id: str) -> None:
        where = self._space(owner)
        if note_id:
            await self._api.delete(where, [note_page_id(note_id)])
        if not fact:
            return
        documents = await self._taken_in(owner, with_content=True)
        for document in documents:
            page = without(fact, document)
            if page is not None:
                await self._api.replace(where, page.id, page.content, page.metadata)
        # What could not be taken in shows no text and may hold the fact, and nothing of it can be recalled anyway.
        await self._api.delete(where, [document.id for document in documents if document.has_failed])
        if any(document.is_waiting for document in documents):
            raise Unavailable(self.name, "has not taken in everything yet, so not all was looked through")

    def _space(self, owner: str) -> str:
        return space(self._prefix, owner)

    @property
    def _api(self) -> Api:
        if self._open is None:
            raise Unavailable(self.name, "is shut down")
        return self._open
