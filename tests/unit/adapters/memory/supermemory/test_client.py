"""Requests to Supermemory: pages, deletions and missing documents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fakes.scripted import ScriptedService

from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.supermemory.client import IDS_MAX, SupermemoryClient
from everthread.domain.errors import Unavailable


@asynccontextmanager
async def client_of(service: ScriptedService) -> AsyncIterator[SupermemoryClient]:
    client = SupermemoryClient("supermemory", JsonHttpClient("supermemory", service.address))
    try:
        yield client
    finally:
        await client.aclose()


async def test_documents_are_read_from_every_page() -> None:
    pages = [{"documents": [{"id": f"d{number}"}], "pagination": {"totalPages": 2}} for number in (1, 2)]
    with ScriptedService() as service:
        service.script("POST /ns/n/list/documents", *pages)
        async with client_of(service) as client:
            assert [one.id for one in await client.documents("n", session="s1")] == ["d1", "d2"]
        filters = service.requests[0].body["filter"]["operands"]
        assert filters == [{"field": "session", "operator": "eq", "value": "s1"}]


async def test_documents_are_deleted_in_batches_and_each_deletion_is_checked() -> None:
    ids = [f"d{number}" for number in range(IDS_MAX + 1)]
    with ScriptedService() as service:
        service.script("DELETE /ns/n/document", {})
        async with client_of(service) as client:
            await client.delete("n", ids)
            assert [len(one.body["ids"]) for one in service.requests if one.method == "DELETE"] == [IDS_MAX, 1]
            service.script("GET /ns/n/document/d0", {"id": "d0"})
            with pytest.raises(Unavailable, match="exists after its deletion"):
                await client.delete("n", ["d0"])


async def test_a_missing_document_or_namespace_is_no_error() -> None:
    with ScriptedService() as service:
        async with client_of(service) as client:
            assert await client.get("n", "d1") is None
            await client.delete_namespace("n")
        assert service.calls == ["GET /ns/n/document/d1", "DELETE /ns/n"]
