"""HTTP client of Supermemory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from everthread.adapters.memory.common.http import JsonHttpClient, unless_missing
from everthread.domain.errors import Unavailable

PAGE_SIZE = 100
IDS_MAX = 100
DONE, FAILED = "done", "failed"

Metadata = dict[str, Any]


class _SystemFields(Struct, frozen=True):
    status: str = "unknown"


class SupermemoryDocument(Struct, frozen=True):
    id: str
    metadata: Metadata = field(default_factory=dict[str, Any])
    content: str | None = None
    """None until the document is first ingested."""
    system: _SystemFields = _SystemFields()

    @property
    def is_pending(self) -> bool:
        return self.system.status not in (DONE, FAILED)

    @property
    def has_failed(self) -> bool:
        return self.system.status == FAILED


class SearchResult(Struct, frozen=True):
    """A passage of a document, or a fact learned from documents."""

    memory: str | None = None
    chunk: str | None = None
    metadata: Metadata = field(default_factory=dict[str, Any])
    similarity: float = 0.0

    @property
    def text(self) -> str:
        return self.chunk or self.memory or ""


class _SearchResponse(Struct, frozen=True):
    results: list[SearchResult]


class _Pagination(Struct, frozen=True, rename="camel"):
    total_pages: float = 1


class _SupermemoryPage(Struct, frozen=True):
    documents: list[SupermemoryDocument]
    pagination: _Pagination = _Pagination()


class _ProfileFact(Struct, frozen=True):
    memory: str


class _ProfileSections(Struct, frozen=True):
    static: list[_ProfileFact] = field(default_factory=list[_ProfileFact])
    dynamic: list[_ProfileFact] = field(default_factory=list[_ProfileFact])


class _ProfileResponse(Struct, frozen=True):
    profile: _ProfileSections


class SupermemoryClient:
    def __init__(self, provider: str, http: JsonHttpClient) -> None:
        self._provider = provider
        self._http = http

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        # Any cheap request that needs the key.
        await self._http.request("GET", "/ns", into=dict[str, Any], query={"limit": 1})

    async def get(self, namespace: str, id: str) -> SupermemoryDocument | None:
        path = f"/ns/{namespace}/document/{id}"
        return await unless_missing(self._http.request("GET", path, into=SupermemoryDocument), None)

    async def add(self, namespace: str, id: str, content: str, metadata: Metadata) -> None:
        """Add a new document. If there is one with this id, the content would be appended to it."""
        body = {"id": id, "content": content, "metadata": metadata}
        await self._http.send("POST", f"/ns/{namespace}/document", body)

    async def replace(self, namespace: str, id: str, content: str, metadata: Metadata) -> None:
        await self._http.send("PATCH", f"/ns/{namespace}/document/{id}", {"content": content, "metadata": metadata})

    async def delete(self, namespace: str, ids: Sequence[str]) -> None:
        """Delete documents and check that they no longer exist.

        The response reports missing documents as errors, so it can't tell whether the deletion succeeded.
        """
        for begin in range(0, len(ids), IDS_MAX):
            batch = list(ids[begin : begin + IDS_MAX])
            await self._http.send("DELETE", f"/ns/{namespace}/document", {"ids": batch})
            for id in batch:
                if await self.get(namespace, id) is not None:
                    raise Unavailable(self._provider, "a document exists after its deletion")

    async def documents(
        self, namespace: str, *, with_content: bool = False, **metadata: str
    ) -> list[SupermemoryDocument]:
        """List the documents with these metadata."""
        operands = [{"field": name, "operator": "eq", "value": value} for name, value in metadata.items()]
        body: dict[str, Any] = {"include": {"content": with_content}}
        if operands:
            body["filter"] = {"operator": "and", "operands": operands}
        documents: list[SupermemoryDocument] = []
        number, pages = 1, 1.0
        while number <= pages:
            query = {"page": number, "limit": PAGE_SIZE}
            path = f"/ns/{namespace}/list/documents"
            page = await self._http.request("POST", path, body, into=_SupermemoryPage, query=query)
            documents += page.documents
            number, pages = number + 1, page.pagination.total_pages
        return documents

    async def search(self, namespace: str, query: str, limit: int) -> list[SearchResult]:
        body = {"query": query, "limit": limit, "searchMode": "hybrid"}
        return (await self._http.request("POST", f"/ns/{namespace}/search", body, into=_SearchResponse)).results

    async def profile(self, namespace: str) -> list[str]:
        response = await self._http.request("POST", f"/ns/{namespace}/profile", {}, into=_ProfileResponse)
        return [fact.memory for fact in (*response.profile.static, *response.profile.dynamic)]

    async def delete_namespace(self, namespace: str) -> None:
        await self._http.delete(f"/ns/{namespace}")
