"""The requests that Supermemory is asked, and its answers as values. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from everthread.adapters.memory.common.http import NotThere, Wire
from everthread.domain.errors import Unavailable

PAGE_SIZE = 100
IDS_MAX = 100
DONE, FAILED = "done", "failed"

Metadata = dict[str, Any]


class _System(Struct, frozen=True):
    status: str = "unknown"


class Document(Struct, frozen=True):
    id: str
    metadata: Metadata = field(default_factory=dict[str, Any])
    content: str | None = None
    """None before it was first taken in."""
    system: _System = _System()

    @property
    def is_waiting(self) -> bool:
        return self.system.status not in (DONE, FAILED)

    @property
    def has_failed(self) -> bool:
        return self.system.status == FAILED


class Result(Struct, frozen=True):
    """A passage of a document, or something learned from some."""

    memory: str | None = None
    chunk: str | None = None
    metadata: Metadata = field(default_factory=dict[str, Any])
    similarity: float = 0.0

    @property
    def text(self) -> str:
        return self.chunk or self.memory or ""


class _Results(Struct, frozen=True):
    results: list[Result]


class _Pagination(Struct, frozen=True, rename="camel"):
    total_pages: float = 1


class _Documents(Struct, frozen=True):
    documents: list[Document]
    pagination: _Pagination = _Pagination()


class _Fact(Struct, frozen=True):
    memory: str


class _Sections(Struct, frozen=True):
    static: list[_Fact] = field(default_factory=list[_Fact])
    dynamic: list[_Fact] = field(default_factory=list[_Fact])


class _Profile(Struct, frozen=True):
    profile: _Sections


class Api:
    def __init__(self, provider: str, wire: Wire) -> None:
        self._provider = provider
        self._wire = wire

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def get(self, space: str, id: str) -> Document | None:
        try:
            return await self._wire.ask("GET", f"/ns/{space}/document/{id}", into=Document)
        except NotThere:
            return None

    async def add(self, space: str, id: str, content: str, metadata: Metadata) -> None:
        """For documents that are not there: to one that is, it would be appended."""
        await self._wire.tell("POST", f"/ns/{space}/document", {"id": id, "content": content, "metadata": metadata})

    async def replace(self, space: str, id: str, content: str, metadata: Metadata) -> None:
        await self._wire.tell("PATCH", f"/ns/{space}/document/{id}", {"content": content, "metadata": metadata})

    async def delete(self, space: str, ids: Sequence[str]) -> None:
        """Those that are there. It tells of the others as mistakes, so what counts is what is left."""
        for begin in range(0, len(ids), IDS_MAX):
            some = list(ids[begin : begin + IDS_MAX])
            await self._wire.tell("DELETE", f"/ns/{space}/document", {"ids": some})
            for id in some:
                if await self.get(space, id) is not None:
                    raise Unavailable(self._provider, "did not delete what it was told to")

    async def documents(self, space: str, *, with_content: bool = False, **metadata: str) -> list[Document]:
        """Those with this in their metadata."""
        operands = [{"field": name, "operator": "eq", "value": value} for name, value in metadata.items()]
        body: dict[str, Any] = {"include": {"content": with_content}}
        if operands:
            body["filter"] = {"operator": "and", "operands": operands}
        found: list[Document] = []
        number, pages = 1, 1.0
        while number <= pages:
            query = {"page": number, "limit": PAGE_SIZE}
            page = await self._wire.ask("POST", f"/ns/{space}/list/documents", body, into=_Documents, query=query)
            found += page.documents
            number, pages = number + 1, page.pagination.total_pages
        return found

    async def search(self, space: str, query: str, limit: int) -> list[Result]:
        body = {"query": query, "limit": limit, "searchMode": "hybrid"}
        return (await self._wire.ask("POST", f"/ns/{space}/search", body, into=_Results)).results

    async def profile(self, space: str) -> list[str]:
        found = (await self._wire.ask("POST", f"/ns/{space}/profile", {}, into=_Profile)).profile
        return [fact.memory for fact in (*found.static, *found.dynamic)]

    async def delete_space(self, space: str) -> None:
        try:
            await self._wire.tell("DELETE", f"/ns/{space}")
        except NotThere:
            return

    async def reach(self) -> None:
        """Anything that needs the key and costs nothing."""
        await self._wire.ask("GET", "/ns", into=dict[str, Any], query={"limit": 1})
