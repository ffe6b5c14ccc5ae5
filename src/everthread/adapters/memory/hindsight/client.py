"""Banks and the documents in them, as Hindsight's HTTP interface has them. A person has a bank of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote
from weakref import WeakValueDictionary

from msgspec import Struct, field

from everthread.adapters.memory.common.http import NotThere, Sleep, Wire
from everthread.adapters.memory.hindsight.codec import Document
from everthread.domain.backoff import Backoff
from everthread.domain.errors import ProviderError, Rejected, Unavailable

SETTLE_S_MAX = 40.0
"""How long one delivery waits until the server has taken a document in. It goes on with it meanwhile."""
LOOK_S_MAX = 10.0
PAGE = 100
PAGES_MAX = 10_000
RECALL_TOKENS = 2_048
_POLL = Backoff(first_s=0.05, max_s=2.0, factor=1.5)
_OF_PARTS = "batch_retain"
_TAKING_IN = ("retain", _OF_PARTS)
_NO_MODEL = "not_configured"


class Found(Struct, frozen=True):
    """One memory. What the server has concluded from others has no document, and `source_fact_ids`."""

    text: str
    document_id: str | None = None
    metadata: dict[str, str] | None = None
    mentioned_at: str | None = None
    source_fact_ids: list[str] | None = None


class Recalled(Struct, frozen=True):
    results: list[Found] = field(default_factory=list[Found])
    source_facts: dict[str, Found] | None = None

    def behind(self, found: Found) -> Sequence[Found]:
        """What it is known from: itself, or what it was concluded from; nothing, if that is not told whole."""
        if found.document_id:
            return (found,)
        known, ids = self.source_facts or {}, found.source_fact_ids or ()
        return tuple(known[each] for each in ids) if all(each in known for each in ids) else ()


class _Part(Struct, frozen=True):
    operation_id: str


class _Given(Struct, frozen=True):
    content: str = ""


class _Payload(Struct, frozen=True):
    contents: list[_Given] | None = None


class _Operation(Struct, frozen=True):
    status: str
    child_operations: list[_Part] | None = None
    task_payload: _Payload | None = None


class _Work(Struct, frozen=True):
    """An operation as it is listed. The parts of one are listed beside it."""

    id: str
    status: str
    task_type: str
    document_id: str | None = None

    @property
    def is_under_way(self) -> bool:
        return self.status in ("pending", "processing")


class _Model(Struct, frozen=True):
    operation: str
    ok: bool
    status: str = ""


class _Models(Struct, frozen=True):
    operations: list[_Model]


class _Works(Struct, frozen=True):
    operations: list[_Work]


class _Listed(Struct, frozen=True):
    id: str


class _Page(Struct, frozen=True):
    items: list[_Listed]


class _Stored(Struct, frozen=True):
    id: str
    original_text: str | None = None
    tags: list[str] = field(default_factory=list[str])
    document_metadata: dict[str, str] | None = None


class _Reflected(Struct, frozen=True):
    text: str


class Banks:
    """Everything is asked once. Nothing of a session is kept here but who is writing to a document right now."""

    def __init__(self, provider: str, wire: Wire, sleep: Sleep) -> None:
        self._provider = provider
        self._wire = wire
        self._sleep = sleep
        self._writing = WeakValueDictionary[str, asyncio.Lock]()

    async def aclose(self) -> None:
        await self._wire.aclose()

    def alone(self, bank: str, document_id: str) -> AbstractAsyncContextManager[object]:
        """One writer of a document at a time: two at once can end in either's words."""
        return self._writing.setdefault(f"{bank}/{document_id}", asyncio.Lock())

    async def put(self, bank: str, document: Document, replay: int) -> None:
        """Returns when the server has taken it in, whole. What it has already is no work for it."""
        signed = document.signed(bank, replay)
        body = {"items": [signed.item()], "async": True, "operation_id": signed.operation}
        await self._wire.tell("POST", f"{_path(bank)}/memories", body)
        await self._settled(bank, signed.operation)

    async def get(self, bank: str, document_id: str) -> Document | None:
        try:
            stored = await self._wire.ask("GET", f"{_path(bank)}/documents/{quote(document_id, safe='')}", into=_Stored)
        except NotThere:
            return None
        return Document(stored.id, stored.original_text or "", stored.document_metadata or {}, tuple(stored.tags))

    async def delete(self, bank: str, document_id: str) -> None:
        """The document and all that was made of it; also the words that the server has kept of the request."""
        if (document := await self.get(bank, document_id)) is None:
            return
        # Its operation is known from the document alone, so that has to be there until the operation is gone.
        await self.drop_operation(bank, document.operation)
        try:
            await self._wire.tell("DELETE", f"{_path(bank)}/documents/{quote(document_id, safe='')}")
        except NotThere:
            return

    async def drop_operation(self, bank: str, operation: str) -> None:
        """The server keeps the words of what it was asked to take in, for ever if nobody tells it otherwise."""
        if not operation:
            return
        path = f"{_path(bank)}/operations"
        known = await self._wire.ask("GET", f"{path}/{operation}", into=_Operation)
        # The parts have the words. The whole goes last: without it nobody would find them.
        for each in (*(part.operation_id for part in known.child_operations or ()), operation):
            try:
                await self._wire.tell("DELETE", f"{path}/{each}/delete")
            except NotThere:
                continue

    async def drop_unfinished(self, bank: str, *, beginning: str = "", holding: str = "") -> None:
        """Nothing more comes of what was to become a document whose id begins so and that holds these words.

        What the server is at work on is waited for: it calls such work cancelled when it is asked to, and may end it
        all the same, and then the document would be there after all.
        """
        now = asyncio.get_running_loop().time
        deadline, delays = now() + SETTLE_S_MAX, _POLL.delays()
        works = await self._unfinished(bank, beginning, holding)
        while any(work.is_under_way for work in works):
            if now() > deadline:
                raise Unavailable(self._provider, "is still at work on what is to be forgotten", retry_after_s=5)
            await self._sleep(next(delays))
            works = await self._unfinished(bank, beginning, holding)
        # The whole goes last: without it nobody would find its parts.
        for work in sorted(works, key=lambda work: work.task_type == _OF_PARTS):
            try:
                await self._wire.tell("DELETE", f"{_path(bank)}/operations/{work.id}/delete")
            except NotThere:
                continue

    async def _unfinished(self, bank: str, beginning: str, holding: str) -> Sequence[_Work]:
        found: list[_Work] = []
        for status in ("pending", "processing", "failed", "cancelled"):
            for page in range(PAGES_MAX):
                query: dict[str, str | int] = {"status": status, "limit": PAGE, "offset": page * PAGE}
                try:
                    listed = await self._wire.ask("GET", f"{_path(bank)}/operations", query=query, into=_Works)
                except NotThere:
                    return ()
                works = (work for work in listed.operations if work.task_type in _TAKING_IN)
                found += [work for work in works if (work.document_id or "").startswith(beginning)]
                if len(listed.operations) < PAGE:
                    break
        return [work for work in found if await self._holds(bank, work, holding)] if holding else found

    async def _holds(self, bank: str, work: _Work, words: str) -> bool:
        path = f"{_path(bank)}/operations/{work.id}"
        known = await self._wire.ask("GET", path, query={"include_payload": "true"}, into=_Operation)
        return any(words in item.content for item in (known.task_payload or _Payload()).contents or ())

    async def delete_bank(self, bank: str) -> None:
        # It makes banks that it does not find: what is under way could make this one anew.
        await self.drop_unfinished(bank)
        try:
            await self._wire.tell("DELETE", _path(bank))
        except NotThere:
            return

    async def ids(self, bank: str, *, tag: str = "", holding: str = "") -> Sequence[str]:
        """The documents that have a tag, or words in them."""
        found: list[str] = []
        for page in range(PAGES_MAX):
            query: dict[str, str | int] = {"limit": PAGE, "offset": page * PAGE}
            query |= {"tags": tag} if tag else {"q": holding}
            try:
                listed = await self._wire.ask("GET", f"{_path(bank)}/documents", query=query, into=_Page)
            except NotThere:
                break
            found += [item.id for item in listed.items]
            if len(listed.items) < PAGE:
                break
        return found

    async def recall(self, bank: str, query: str) -> Recalled:
        body: Mapping[str, object] = {
            "query": query,
            "budget": "low",
            "max_tokens": RECALL_TOKENS,
            "include": {"entities": None, "source_facts": {}},
        }
        try:
            return await self._wire.ask("POST", f"{_path(bank)}/memories/recall", body, into=Recalled)
        except NotThere:
            return Recalled()

    async def reflect(self, bank: str, query: str) -> str:
        body = {"query": query, "budget": "low"}
        return (await self._wire.ask("POST", f"{_path(bank)}/reflect", body, into=_Reflected)).text

    async def health(self) -> None:
        await self._wire.tell("GET", "/health")

    async def _settled(self, bank: str, operation: str) -> None:
        path = f"{_path(bank)}/operations/{operation}"
        now = asyncio.get_running_loop().time
        deadline, delays, has_tried_again = now() + SETTLE_S_MAX, _POLL.delays(), False
        while (status := (await self._wire.ask("GET", path, into=_Operation)).status) != "completed":
            if status in ("failed", "cancelled"):
                # Sending it again would do nothing: the server knows that operation already.
                if has_tried_again:
                    raise await self._why_not(bank)
                await self._again(path)
                has_tried_again = True
            elif status == "not_found" or now() > deadline:
                raise Unavailable(self._provider, f"has not taken it in yet ({status[:20]})", retry_after_s=5)
            await self._sleep(next(delays))

    async def _why_not(self, bank: str) -> ProviderError:
        """Whether the server can take in nothing at present, or this one document never."""
        why = "could not take it in; see the server's log"
        if await self._works(bank):
            return ProviderError(self._provider, f"{why}; it answers otherwise")
        return Unavailable(self._provider, why, retry_after_s=30)

    async def _works(self, bank: str) -> bool:
        """Whether its embeddings and its model answer: what it needs for every document."""
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                await self.recall(bank, "anything")
                models = await self._wire.ask("POST", f"{_path(bank)}/health/llm", into=_Models)
        except NotThere:
            # It was told not to say how its model is.
            return True
        except (Unavailable, TimeoutError):
            return False
        return all(one.ok or one.status == _NO_MODEL for one in models.operations if one.operation == "retain")

    async def _again(self, path: str) -> None:
        try:
            await self._wire.tell("POST", f"{path}/retry")
        except Rejected:
            raise Unavailable(self._provider, "will not try again by itself; see the server's log") from None


def _path(bank: str) -> str:
    return f"/v1/default/banks/{quote(bank, safe='')}"
