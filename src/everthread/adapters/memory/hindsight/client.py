"""HTTP client of Hindsight: banks, documents, and the operations that ingest them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote

from msgspec import Struct, field

from everthread.adapters.memory.common.http import JsonHttpClient, ResourceNotFound, Sleep, unless_missing
from everthread.adapters.memory.common.locks import KeyedLocks
from everthread.adapters.memory.hindsight.codec import HindsightDocument
from everthread.domain.backoff import Backoff
from everthread.domain.errors import ProviderError, Rejected, Unavailable

INGEST_S_MAX = 40.0
"""How long one delivery waits until the server has ingested a document. The server goes on with it meanwhile."""
CHECK_S_MAX = 10.0
PAGE_SIZE = 100
PAGES_MAX = 10_000
RECALL_TOKENS = 2_048
_POLL = Backoff(first_s=0.05, max_s=2.0, factor=1.5)
_BATCH_TYPE = "batch_retain"
_INGEST_TYPES = ("retain", _BATCH_TYPE)
_NO_MODEL = "not_configured"


class RecalledFact(Struct, frozen=True):
    """A fact. One that the server inferred from others has no document, and lists them in `source_fact_ids`."""

    text: str
    document_id: str | None = None
    metadata: dict[str, str] | None = None
    mentioned_at: str | None = None
    source_fact_ids: list[str] | None = None


class RecallResponse(Struct, frozen=True):
    results: list[RecalledFact] = field(default_factory=list[RecalledFact])
    source_facts: dict[str, RecalledFact] | None = None

    def sources(self, fact: RecalledFact) -> Sequence[RecalledFact]:
        """Return the facts with a document behind `fact`; none if the response does not contain all of them."""
        if fact.document_id:
            return (fact,)
        known, ids = self.source_facts or {}, fact.source_fact_ids or ()
        return tuple(known[each] for each in ids) if all(each in known for each in ids) else ()


class _ChildOperation(Struct, frozen=True):
    operation_id: str


class _PayloadItem(Struct, frozen=True):
    content: str = ""


class _Payload(Struct, frozen=True):
    contents: list[_PayloadItem] | None = None


class _Operation(Struct, frozen=True):
    status: str
    child_operations: list[_ChildOperation] | None = None
    task_payload: _Payload | None = None


class _ListedOperation(Struct, frozen=True):
    """An operation in a list. The children of a batch are listed beside it."""

    id: str
    status: str
    task_type: str
    document_id: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status in ("pending", "processing")


class _OperationList(Struct, frozen=True):
    operations: list[_ListedOperation]


class _ModelHealth(Struct, frozen=True):
    operation: str
    ok: bool
    status: str = ""


class _ModelHealthList(Struct, frozen=True):
    operations: list[_ModelHealth]


class _ListedDocument(Struct, frozen=True):
    id: str


class _DocumentList(Struct, frozen=True):
    items: list[_ListedDocument]


class _StoredDocument(Struct, frozen=True):
    id: str
    original_text: str | None = None
    tags: list[str] = field(default_factory=list[str])
    document_metadata: dict[str, str] | None = None


class _Reflection(Struct, frozen=True):
    text: str


class HindsightClient:
    """Stateless but for the locks on documents that are being written."""

    def __init__(self, provider: str, http: JsonHttpClient, sleep: Sleep) -> None:
        self._provider = provider
        self._http = http
        self._sleep = sleep
        self._locks = KeyedLocks()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        await self._http.send("GET", "/health")

    # Documents --------------------------------------------------------------------------------------------------------

    def lock(self, bank: str, document_id: str) -> AbstractAsyncContextManager[object]:
        """Allow one writer of a document at a time: of two, either one's text could remain."""
        return self._locks.lock(f"{bank}/{document_id}")

    async def put(self, bank: str, document: HindsightDocument, replay: int) -> None:
        """Store a document and wait until the server has ingested it. A repetition is no work for the server."""
        signed = document.signed(bank, replay)
        body = {"items": [signed.item()], "async": True, "operation_id": signed.operation}
        await self._http.send("POST", f"{_path(bank)}/memories", body)
        await self._wait_ingested(bank, signed.operation)

    async def get(self, bank: str, document_id: str) -> HindsightDocument | None:
        path = _document_path(bank, document_id)
        stored = await unless_missing(self._http.request("GET", path, into=_StoredDocument), None)
        return stored and HindsightDocument(
            stored.id, stored.original_text or "", stored.document_metadata or {}, tuple(stored.tags)
        )

    async def delete(self, bank: str, document_id: str) -> None:
        """Delete a document, the facts derived from it, and the text that the server keeps with the request."""
        if (document := await self.get(bank, document_id)) is None:
            return
        # Only the document names its operation, so it is deleted after the operation.
        await self.delete_operation(bank, document.operation)
        await self._http.delete(_document_path(bank, document_id))

    async def document_ids(self, bank: str, *, tag: str = "", containing: str = "") -> Sequence[str]:
        """List the documents with a tag, or with a text."""
        ids: list[str] = []
        for page in range(PAGES_MAX):
            query: dict[str, str | int] = {"limit": PAGE_SIZE, "offset": page * PAGE_SIZE}
            query |= {"tags": tag} if tag else {"q": containing}
            path = f"{_path(bank)}/documents"
            request = self._http.request("GET", path, query=query, into=_DocumentList)
            listed = await unless_missing(request, _DocumentList([]))
            ids += [item.id for item in listed.items]
            if len(listed.items) < PAGE_SIZE:
                break
        return ids

    async def delete_bank(self, bank: str) -> None:
        # The server creates banks on demand: an operation that is still running could create this one again.
        await self.delete_unfinished(bank)
        await self._http.delete(_path(bank))

    # Recall -----------------------------------------------------------------------------------------------------------

    async def recall(self, bank: str, query: str) -> RecallResponse:
        body: Mapping[str, object] = {
            "query": query,
            "budget": "low",
            "max_tokens": RECALL_TOKENS,
            "include": {"entities": None, "source_facts": {}},
        }
        path = f"{_path(bank)}/memories/recall"
        return await unless_missing(self._http.request("POST", path, body, into=RecallResponse), RecallResponse())

    async def reflect(self, bank: str, query: str) -> str:
        """Let the server's model answer a question from memory; empty if there is no such bank."""
        body = {"query": query, "budget": "low"}
        path = f"{_path(bank)}/reflect"
        return (await unless_missing(self._http.request("POST", path, body, into=_Reflection), _Reflection(""))).text

    # Operations -------------------------------------------------------------------------------------------------------

    async def delete_operation(self, bank: str, operation: str) -> None:
        """Delete an operation: the server keeps the text of what it was asked to ingest until then."""
        if not operation:
            return
        path = f"{_path(bank)}/operations"
        known = await self._http.request("GET", f"{path}/{operation}", into=_Operation)
        # The children hold the text. The batch goes last: only it names its children.
        for each in (*(child.operation_id for child in known.child_operations or ()), operation):
            await self._http.delete(f"{path}/{each}/delete")

    async def delete_unfinished(self, bank: str, *, prefix: str = "", containing: str = "") -> None:
        """Delete unfinished ingest operations of documents whose id has the prefix and whose text contains the words.

        Running operations are waited for: the server reports one as cancelled on request, yet may finish it, and then
        the document would exist after all.
        """
        now = asyncio.get_running_loop().time
        deadline, delays = now() + INGEST_S_MAX, _POLL.delays()
        operations = await self._unfinished(bank, prefix, containing)
        while any(operation.is_running for operation in operations):
            if now() > deadline:
                raise Unavailable(self._provider, "still ingesting what is to be forgotten", retry_after_s=5)
            await self._sleep(next(delays))
            operations = await self._unfinished(bank, prefix, containing)
        # Batches go last: only they name their children.
        for operation in sorted(operations, key=lambda operation: operation.task_type == _BATCH_TYPE):
            await self._http.delete(f"{_path(bank)}/operations/{operation.id}/delete")

    async def _unfinished(self, bank: str, prefix: str, containing: str) -> Sequence[_ListedOperation]:
        found: list[_ListedOperation] = []
        for status in ("pending", "processing", "failed", "cancelled"):
            for page in range(PAGES_MAX):
                query: dict[str, str | int] = {"status": status, "limit": PAGE_SIZE, "offset": page * PAGE_SIZE}
                path = f"{_path(bank)}/operations"
                request = self._http.request("GET", path, query=query, into=_OperationList)
                listed = await unless_missing(request, _OperationList([]))
                ingesting = (each for each in listed.operations if each.task_type in _INGEST_TYPES)
                found += [each for each in ingesting if (each.document_id or "").startswith(prefix)]
                if len(listed.operations) < PAGE_SIZE:
                    break
        return [each for each in found if await self._contains(bank, each, containing)] if containing else found

    async def _contains(self, bank: str, operation: _ListedOperation, words: str) -> bool:
        path = f"{_path(bank)}/operations/{operation.id}"
        known = await self._http.request("GET", path, query={"include_payload": "true"}, into=_Operation)
        return any(words in item.content for item in (known.task_payload or _Payload()).contents or ())

    async def _wait_ingested(self, bank: str, operation: str) -> None:
        path = f"{_path(bank)}/operations/{operation}"
        now = asyncio.get_running_loop().time
        deadline, delays, has_retried = now() + INGEST_S_MAX, _POLL.delays(), False
        while (status := (await self._http.request("GET", path, into=_Operation)).status) != "completed":
            if status in ("failed", "cancelled"):
                # Sending the document again would do nothing: the server knows that operation already.
                if has_retried:
                    raise await self._ingest_error(bank)
                await self._retry(path)
                has_retried = True
            elif status == "not_found" or now() > deadline:
                raise Unavailable(self._provider, f"the document is not ingested yet ({status[:20]})", retry_after_s=5)
            await self._sleep(next(delays))

    async def _ingest_error(self, bank: str) -> ProviderError:
        """Tell a server that can ingest nothing at present from a document that it can never ingest."""
        message = "could not ingest a document; see the server's log"
        if await self._can_ingest(bank):
            return ProviderError(self._provider, f"{message}; the server answers other requests")
        return Unavailable(self._provider, message, retry_after_s=30)

    async def _can_ingest(self, bank: str) -> bool:
        """Check the server's embeddings and its model, which every document needs."""
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self.recall(bank, "anything")
                models = await self._http.request("POST", f"{_path(bank)}/health/llm", into=_ModelHealthList)
        except ResourceNotFound:
            # The server is configured not to report on its model.
            return True
        except (Unavailable, TimeoutError):
            return False
        return all(one.ok or one.status == _NO_MODEL for one in models.operations if one.operation == "retain")

    async def _retry(self, path: str) -> None:
        try:
            await self._http.send("POST", f"{path}/retry")
        except Rejected:
            raise Unavailable(self._provider, "refuses to retry an operation; see the server's log") from None


def _path(bank: str) -> str:
    return f"/v1/default/banks/{quote(bank, safe='')}"


def _document_path(bank: str, document_id: str) -> str:
    return f"{_path(bank)}/documents/{quote(document_id, safe='')}"
