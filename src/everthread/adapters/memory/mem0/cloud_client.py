"""HTTP client of Mem0's cloud.

The cloud accepts a request and carries it out later, which can fail. So an entry counts as delivered when its event has
succeeded. A request whose response was lost may take effect long after its retry: each request has a marker, and the
memories of the second one are removed, at the latest by the session's next close.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec import Struct, field

from everthread.adapters.memory.common.encoding import encode_id, join_ids
from everthread.adapters.memory.common.http import JsonHttpClient, Sleep
from everthread.adapters.memory.common.locks import KeyedLocks
from everthread.adapters.memory.mem0.codec import Mem0Entry, Mem0Memory, duplicate_ids, matches
from everthread.domain.backoff import Backoff
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.model import FORGOTTEN

PAGE_SIZE = 100
PAGES_MAX = 10_000
INGEST_S_MAX = 40.0
"""How long one delivery waits until the cloud has carried it out. The cloud goes on with it meanwhile."""
FAILURES_MAX = 3
_POLL = Backoff(first_s=0.1, max_s=2.0)
_DELETE_S_MAX = 20.0
_SUCCEEDED, _FAILED = "SUCCEEDED", "FAILED"


class _EventStatus(Struct, frozen=True):
    status: str = ""


class _AddResponse(Struct, frozen=True):
    event_id: str = ""


class _MemoryPage(Struct, frozen=True):
    results: list[Mem0Memory]
    next: str | None = None


class _Mem0SearchResponse(Struct, frozen=True):
    results: list[Mem0Memory] = field(default_factory=list[Mem0Memory])


class Mem0CloudClient:
    def __init__(
        self,
        provider: str,
        http: JsonHttpClient,
        prefix: str,
        sleep: Sleep,
        *,
        new_marker: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._provider = provider
        self._http = http
        self._prefix = prefix
        self._sleep = sleep
        self._new_marker = new_marker
        self._locks = KeyedLocks()

    async def start(self) -> None:
        """Do nothing: the cloud may be up by the first entry."""

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        await self._http.send("GET", "/v1/ping/")

    async def add(self, owner: str, entry: Mem0Entry) -> None:
        run = encode_id(entry.session_id)
        async with self._locks.lock(f"{owner}/{run}"):
            about = {"session": entry.session_id, "entry": entry.key}
            if stored := await self._all(self._run_filter(owner, run), **about):
                await self._remove_duplicates(stored)
                return
            body = {
                "messages": [{"role": role, "content": text} for role, text in entry.messages],
                "user_id": self._user(owner),
                "run_id": run,
                "metadata": {**entry.metadata, "request": self._new_marker()},
                "infer": entry.infer,
            }
            response = await self._http.request("POST", "/v3/memories/add/", body, into=_AddResponse)
            await self._wait_succeeded(response.event_id, entry.attempt)
            if entry.attempt > 1:
                # The previous request may have been in the cloud's queue, which can't be listed.
                await self._remove_duplicates(await self._all(self._run_filter(owner, run), **about))

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Mem0Memory]:
        body = {"query": query, "top_k": limit, "filters": self._owner_filter(owner)}
        return (await self._http.request("POST", "/v3/memories/search/", body, into=_Mem0SearchResponse)).results

    async def memories(self, owner: str, limit: int, **about: str | int) -> Sequence[Mem0Memory]:
        return (await self._all(self._owner_filter(owner), **about))[:limit]

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        for id in ids:
            await self._http.delete(f"/v1/memories/{encode_id(id)}/")

    async def close(self, owner: str, session_id: str) -> None:
        await self._remove_duplicates(await self._all(self._run_filter(owner, encode_id(session_id))))

    async def forget_session(self, owner: str, session_id: str) -> None:
        run = encode_id(session_id)
        await self._delete_all(self._run_filter(owner, run), user_id=self._user(owner), run_id=run)

    async def forget_owner(self, owner: str) -> None:
        await self._delete_all(self._owner_filter(owner), user_id=self._user(owner))
        await self._http.delete(f"/v2/entities/user/{self._user(owner)}/")

    async def forget_text(self, owner: str, text: str) -> None:
        for memory in await self._all(self._owner_filter(owner)):
            if text not in memory.memory:
                continue
            remaining = memory.memory.replace(text, FORGOTTEN)
            if remaining.strip() == FORGOTTEN:
                await self.remove(owner, [memory.id])
            else:
                await self._http.send("PUT", f"/v1/memories/{encode_id(memory.id)}/", {"text": remaining})

    # ------------------------------------------------------------------------------------------------------------------

    async def _wait_succeeded(self, event_id: str, attempt: int) -> None:
        delays, waited_s = _POLL.delays(), 0.0
        while event_id:
            status = (await self._http.request("GET", f"/v1/event/{encode_id(event_id)}/", into=_EventStatus)).status
            if status == _SUCCEEDED:
                return
            if status == _FAILED:
                error = Rejected if attempt >= FAILURES_MAX else Unavailable
                raise error(self._provider, "accepted an entry and could not carry it out")
            if waited_s >= INGEST_S_MAX:
                raise Unavailable(self._provider, f"has not carried out an entry after {INGEST_S_MAX:g} s")
            await self._sleep(pause_s := next(delays))
            waited_s += pause_s

    async def _remove_duplicates(self, memories: Sequence[Mem0Memory]) -> None:
        await self.remove("", duplicate_ids(memories))

    async def _delete_all(self, filters: dict[str, Any], **scope: str) -> None:
        """Delete memories and wait until the cloud no longer finds them."""
        waited_s = 0.0
        while await self._all(filters):
            if not waited_s:
                await self._http.send("DELETE", "/v1/memories/", query=scope)
            elif waited_s >= _DELETE_S_MAX:
                raise Unavailable(self._provider, f"a deletion is not done after {_DELETE_S_MAX:g} s", retry_after_s=30)
            await self._sleep(_POLL.first_s)
            waited_s += _POLL.first_s

    async def _all(self, filters: dict[str, Any], **about: str | int) -> list[Mem0Memory]:
        """List memories, oldest first. The cloud filters by one metadata field; the others are compared here."""
        rarest = next((name for name in ("entry", "note") if name in about), None)
        if rarest is not None:
            filters = {"AND": [*filters["AND"], {"metadata": {rarest: about[rarest]}}]}
        memories = [memory async for memory in self._pages(filters) if matches(memory, about)]
        return sorted(memories, key=lambda memory: memory.created_at)

    async def _pages(self, filters: dict[str, Any]) -> AsyncGenerator[Mem0Memory, None]:
        for number in range(1, PAGES_MAX):
            query = {"page": number, "page_size": PAGE_SIZE}
            page = await self._http.request(
                "POST", "/v3/memories/", {"filters": filters}, into=_MemoryPage, query=query
            )
            for memory in page.results:
                yield memory
            if not page.next:
                return

    def _user(self, owner: str) -> str:
        return join_ids(encode_id(self._prefix), encode_id(owner))

    def _run_filter(self, owner: str, run: str) -> dict[str, Any]:
        return {"AND": [{"user_id": self._user(owner)}, {"run_id": run}]}

    def _owner_filter(self, owner: str) -> dict[str, Any]:
        """Name every run: a filter without one matches only memories that have none."""
        return {"AND": [{"user_id": self._user(owner)}, {"run_id": "*"}]}
