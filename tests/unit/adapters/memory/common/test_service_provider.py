"""Behaviour that all providers of services share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.runtime import CLI, ME

from everthread.adapters.memory.common.service_provider import RESULTS_MAX, NoteRevision, ServiceProvider
from everthread.adapters.memory.common.tools import TextTool
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Cause, SessionRef
from everthread.ports.memory import RecallItem

REF, DELIVERY = SessionRef("s1", 0, CLI, 1, ME), Delivery("s1:1:diary:0", 1)


class Client:
    problem = ""
    is_closed = False

    async def check(self) -> None:
        if self.problem:
            raise Unavailable("diary", self.problem)

    async def aclose(self) -> None:
        self.is_closed = True


class Diary(ServiceProvider[Client]):
    service = "diary"
    tools = (TextTool("diary_search", "Search.", "query"),)
    query_chars_max = 5

    def __init__(self) -> None:
        super().__init__()
        self._opened = self.client = Client()
        self.calls: list[object] = []

    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        self.calls.append((query, limit))
        return [RecallItem("keeps bees")]

    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str:
        return await self._search_text(argument, ref)

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        self.calls.append(("open", parent_id))

    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        self.calls.append(("rewind", *turns))

    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None:
        self.calls.append(note)

    async def _forget_session(self, ref: SessionRef) -> None:
        self.calls.append("session")

    async def _forget_owner(self, owner: str) -> None:
        self.calls.append("owner")

    async def _forget_note(self, owner: str, note_id: str) -> None:
        self.calls.append(note_id)

    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        self.calls.append(text)


async def test_a_query_is_bounded_and_an_empty_one_is_not_sent() -> None:
    diary = Diary()
    assert await diary.prefetch("  beekeeping", ref=REF, limit=10_000)
    assert not await diary.prefetch("  ", ref=REF, limit=5)
    assert not await diary.prefetch("bees", ref=REF, limit=0)
    assert diary.calls == [("beeke", RESULTS_MAX)]


async def test_a_tool_returns_what_is_recalled() -> None:
    assert await Diary().handle_tool_call("diary_search", {"query": "bees"}, ref=REF) == "- keeps bees"


async def test_a_session_that_is_resumed_has_no_new_parent() -> None:
    diary = Diary()
    for reason in (Cause.BRANCH, Cause.RESUME):
        await diary.on_session_switch("s1", parent_session_id="s0", reason=reason.value, ref=REF, delivery=DELIVERY)
    await diary.on_session_switch("s1", rewound=True, turns=(2, 3), ref=REF, delivery=DELIVERY)
    assert diary.calls == [("open", "s0"), ("open", ""), ("rewind", 2, 3)]


async def test_a_removed_note_has_no_content_and_an_outdated_one_is_not_written() -> None:
    diary = Diary()
    about = {"note_id": "n1", "version": 2, "at": 5.0}
    await diary.on_memory_write("remove", "user", "old", about, ref=REF, delivery=DELIVERY)
    await diary.on_memory_write("add", "user", "new", {**about, "newest": 3}, ref=REF, delivery=DELIVERY)
    assert diary.calls == [NoteRevision("n1", 2, "user", "", 5.0)]


async def test_forgetting_is_dispatched_by_its_scope() -> None:
    diary = Diary()
    await diary.forget(ForgetScope.SESSION, ref=REF, delivery=DELIVERY)
    await diary.forget(ForgetScope.OWNER, ref=REF, delivery=DELIVERY)
    await diary.forget(ForgetScope.FACT, ref=REF, delivery=DELIVERY, text="4711", note_id="n1")
    await diary.forget(ForgetScope.FACT, ref=REF, delivery=DELIVERY, text=" ")
    assert diary.calls == ["session", "owner", "n1", "4711"]


async def test_health_reports_what_is_wrong_and_a_shut_down_provider_is_unavailable() -> None:
    diary = Diary()
    assert await diary.health() == "ok"
    diary.client.problem = "overloaded"
    assert await diary.health() == "diary: overloaded"
    await diary.shutdown()
    await diary.shutdown()
    assert diary.client.is_closed
    assert await diary.health() == "diary: is shut down"
    with pytest.raises(Unavailable):
        _ = diary._client  # noqa: SLF001
