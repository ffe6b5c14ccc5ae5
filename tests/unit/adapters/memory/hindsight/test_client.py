"""Requests to Hindsight: ingestion, retries, deletion and pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fakes.scripted import ScriptedService

from everthread.adapters.memory.common.http import JsonHttpClient
from everthread.adapters.memory.hindsight.client import PAGE_SIZE, HindsightClient
from everthread.adapters.memory.hindsight.codec import turn_document
from everthread.domain.errors import ProviderError, Unavailable

BANK = "/v1/default/banks/b"
DOCUMENT = turn_document("s1", 1, "I keep bees", "I see.", 1.0)
OPERATION = DOCUMENT.signed("b", 0).operation


@asynccontextmanager
async def client_of(service: ScriptedService) -> AsyncIterator[HindsightClient]:
    async def no_sleep(seconds: float) -> None:
        return None

    client = HindsightClient("hindsight", JsonHttpClient("hindsight", service.address), no_sleep)
    try:
        yield client
    finally:
        await client.aclose()


async def test_put_returns_once_the_document_is_ingested() -> None:
    with ScriptedService() as service:
        service.script(f"POST {BANK}/memories", {})
        service.script(f"GET {BANK}/operations/{OPERATION}", {"status": "pending"}, {"status": "completed"})
        async with client_of(service) as client:
            await client.put("b", DOCUMENT, replay=0)
        assert service.calls == [f"POST {BANK}/memories", *[f"GET {BANK}/operations/{OPERATION}"] * 2]
        assert service.requests[0].body["operation_id"] == OPERATION


async def test_a_failed_ingestion_is_retried_once_and_then_reported() -> None:
    with ScriptedService() as service:
        service.script(f"POST {BANK}/memories", {})
        service.script(f"GET {BANK}/operations/{OPERATION}", {"status": "failed"})
        service.script(f"POST {BANK}/operations/{OPERATION}/retry", {})
        async with client_of(service) as client:
            # The server answers other requests, so the document itself is the problem.
            with pytest.raises(ProviderError, match="the server answers other requests"):
                await client.put("b", DOCUMENT, replay=0)
            service.script(f"POST {BANK}/health/llm", {"operations": [{"operation": "retain", "ok": False}]})
            with pytest.raises(Unavailable, match="could not ingest"):
                await client.put("b", DOCUMENT, replay=0)
        assert service.calls.count(f"POST {BANK}/operations/{OPERATION}/retry") == 2


async def test_a_document_is_deleted_after_the_operation_that_only_it_names() -> None:
    stored = {"id": "s1/0001", "original_text": "words", "document_metadata": {"operation": "op-1"}}
    with ScriptedService() as service:
        service.script(f"GET {BANK}/documents/s1/0001", stored)
        service.script(
            f"GET {BANK}/operations/op-1", {"status": "completed", "child_operations": [{"operation_id": "c"}]}
        )
        async with client_of(service) as client:
            await client.delete("b", "s1/0001")
            await client.delete("b", "missing")
        deletions = [call for call in service.calls if call.startswith("DELETE")]
        assert deletions == [
            f"DELETE {BANK}/operations/c/delete",
            f"DELETE {BANK}/operations/op-1/delete",
            f"DELETE {BANK}/documents/s1/0001",
        ]


async def test_documents_are_listed_page_by_page_and_an_unknown_bank_has_none() -> None:
    full = {"items": [{"id": f"d{number}"} for number in range(PAGE_SIZE)]}
    with ScriptedService() as service:
        async with client_of(service) as client:
            assert await client.document_ids("b", tag="session:s1") == []
            service.script(f"GET {BANK}/documents", full, {"items": [{"id": "last"}]})
            ids = await client.document_ids("b", tag="session:s1")
        assert (len(ids), ids[-1]) == (PAGE_SIZE + 1, "last")
        assert service.requests[-1].query == {"limit": "100", "offset": "100", "tags": "session:s1"}


async def test_unfinished_operations_are_awaited_before_they_are_deleted() -> None:
    def listed(status: str) -> dict[str, object]:
        return {"operations": [{"id": "o", "status": status, "task_type": "retain", "document_id": "s1/0001"}]}

    nothing: dict[str, object] = {"operations": []}
    with ScriptedService() as service:
        # Four statuses are listed in each round: the operation runs in the first round and has failed in the second.
        service.script(f"GET {BANK}/operations", listed("pending"), *[nothing] * 5, listed("failed"), nothing)
        async with client_of(service) as client:
            await client.delete_unfinished("b", prefix="s1/")
        assert service.calls.count(f"GET {BANK}/operations") == 8
        assert service.calls[-1] == f"DELETE {BANK}/operations/o/delete"


async def test_an_unknown_bank_recalls_nothing() -> None:
    with ScriptedService() as service:
        async with client_of(service) as client:
            assert (await client.recall("b", "bees")).results == []
            assert await client.reflect("b", "bees?") == ""
