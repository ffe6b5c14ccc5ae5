"""Mem0's platform, over HTTP.

It takes a request, says yes, and carries it out later, which can fail. So an entry counts as delivered when its event
has succeeded. A request whose answer was lost may be carried out long after its repetition: each request has a mark of
its own, and what the second one has brought is removed, at the latest by the session's next close.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct, field

from everthread.adapters.memory.common.encoding import encoded, named
from everthread.adapters.memory.common.http import NotThere, Sleep, Wire
from everthread.adapters.memory.mem0.codec import Entry, Remembered, fits, repeated
from everthread.domain.backoff import Backoff
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.model import FORGOTTEN

PAGE_SIZE = 100
PAGES_MAX = 10_000
IDS_MAX = 1_000
TAKES_IN_S_MAX = 40.0
"""How long one delivery waits until the platform has carried it out. It goes on with it meanwhile."""
FAILURES_MAX = 3
_POLL = Backoff(first_s=0.1, max_s=2.0)
_GONE_S_MAX = 20.0
_DONE, _FAILED = "SUCCEEDED", "FAILED"


class _Event(Struct, frozen=True):
    status: str = ""


class _Accepted(Struct, frozen=True):
    event_id: str = ""


class _Page(Struct, frozen=True):
    results: list[Remembered]
    next: str | None = None


class _Found(Struct, frozen=True):
    results: list[Remembered] = field(default_factory=list[Remembered])


class Platform:
    def __init__(
        self,
        provider: str,
        wire: Wire,
        prefix: str,
        sleep: Sleep,
        *,
        mark: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._provider = provider
        self._wire = wire
        self._prefix = prefix
        self._sleep = sleep
        self._mark = mark
        self._writing = WeakValueDictionary[str, asyncio.Lock]()

    async def begin(self) -> None:
        """Nothing is asked of it yet: one that is down now may be up for the first entry."""

    async def aclose(self) -> None:
        await self._wire.aclose()

    # What it does -----------------------------------------------------------------------------------------------------

    async def add(self, owner: str, entry: Entry) -> None:
        run = encoded(entry.session_id)
        async with self._writing.setdefault(f"{owner}/{run}", asyncio.Lock()):
            about = {"session": entry.session_id, "entry": entry.key}
            if found := await self._all(self._of_run(owner, run), **about):
                await self._sweep(found)
                return
            body = {
                "messages": [{"role": who, "content": words} for who, words in entry.messages],
                "user_id": self._user(owner),
                "run_id": run,
                "metadata": {**entry.metadata, "request": self._mark()},
                "infer": entry.infer,
            }
            accepted = await self._wire.ask("POST", "/v3/memories/add/", body, into=_Accepted)
            await self._carried_out(accepted.event_id, entry.attempt)
            if entry.attempt > 1:
                # The request before this one may have been in the queue, where nobody sees it.
                await self._sweep(await self._all(self._of_run(owner, run), **about))

    async def search(self, owner: str, query: str, limit: int) -> Sequence[Remembered]:
        body = {"query": query, "top_k": limit, "filters": self._of_person(owner)}
        return (await self._wire.ask("POST", "/v3/memories/search/", body, into=_Found)).results

    async def listed(self, owner: str, limit: int, **about: str | int) -> Sequence[Remembered]:
        return (await self._all(self._of_person(owner), **about))[:limit]

    async def remove(self, owner: str, ids: Sequence[str]) -> None:
        for id in ids:
            try:
                await self._wire.tell("DELETE", f"/v1/memories/{encoded(id)}/")
            except NotThere:
                continue

    async def close(self, owner: str, session_id: str) -> None:
        await self._sweep(await self._all(self._of_run(owner, encoded(session_id))))

    async def forget_session(self, owner: str, session_id: str) -> None:
        run = encoded(session_id)
        await self._gone(self._of_run(owner, run), user_id=self._user(owner), run_id=run)

    async def forget_person(self, owner: str) -> None:
        await self._gone(self._of_person(owner), user_id=self._user(owner))
        try:
            await self._wire.tell("DELETE", f"/v2/entities/user/{self._user(owner)}/")
        except NotThere:
            return

    async def forget_words(self, owner: str, words: str) -> None:
        for one in await self._all(self._of_person(owner)):
            if words not in one.memory:
                continue
            left = one.memory.replace(words, FORGOTTEN)
            if left.strip() == FORGOTTEN:
                await self.remove(owner, [one.id])
            else:
                await self._wire.tell("PUT", f"/v1/memories/{encoded(one.id)}/", {"text": left})

    async def check(self) -> None:
        await self._wire.tell("GET", "/v1/ping/")

    # ------------------------------------------------------------------------------------------------------------------

    async def _carried_out(self, event_id: str, attempt: int) -> None:
        delays, waited_s = _POLL.delays(), 0.0
        while event_id:
            status = (await self._wire.ask("GET", f"/v1/event/{encoded(event_id)}/", into=_Event)).status
            if status == _DONE:
                return
            if status == _FAILED:
                words = "took something and could not carry it out"
                raise (Rejected if attempt >= FAILURES_MAX else Unavailable)(self._provider, words)
            if waited_s >= TAKES_IN_S_MAX:
                raise Unavailable(self._provider, f"has not carried something out after {TAKES_IN_S_MAX:g} s")
            await self._sleep(pause_s := next(delays))
            waited_s += pause_s

    async def _sweep(self, found: Sequence[Remembered]) -> None:
        for id in repeated(found):
            await self.remove("", [id])

    async def _gone(self, filters: dict[str, Any], **whose: str) -> None:
        """Delete, and wait until it is done: until then it can still be found."""
        waited_s = 0.0
        while await self._all(filters):
            if not waited_s:
                await self._wire.ask("DELETE", "/v1/memories/", into=Any, query=whose)  # pyright: ignore[reportArgumentType] - anything will do
            elif waited_s >= _GONE_S_MAX:
                raise Unavailable(self._provider, f"a deletion is not done after {_GONE_S_MAX:g} s", retry_after_s=30)
            await self._sleep(_POLL.first_s)
            waited_s += _POLL.first_s

    async def _all(self, filters: dict[str, Any], **about: str | int) -> list[Remembered]:
        """Oldest first. The platform looks for one thing in the metadata, and the rest is looked at here."""
        rarest = next((name for name in ("entry", "note") if name in about), None)
        if rarest is not None:
            filters = {"AND": [*filters["AND"], {"metadata": {rarest: about[rarest]}}]}
        found = [one async for one in self._pages(filters) if fits(one, about)]
        return sorted(found, key=lambda one: one.created_at)

    async def _pages(self, filters: dict[str, Any]) -> AsyncGenerator[Remembered, None]:
        for number in range(1, PAGES_MAX):
            query = {"page": number, "page_size": PAGE_SIZE}
            page = await self._wire.ask("POST", "/v3/memories/", {"filters": filters}, into=_Page, query=query)
            for one in page.results:
                yield one
            if not page.next:
                return

    def _user(self, owner: str) -> str:
        return named(encoded(self._prefix), encoded(owner))

    def _of_run(self, owner: str, run: str) -> dict[str, Any]:
        return {"AND": [{"user_id": self._user(owner)}, {"run_id": run}]}

    def _of_person(self, owner: str) -> dict[str, Any]:
        """A filter without a run would leave out whatever has one."""
        return {"AND": [{"user_id": self._user(owner)}, {"run_id": "*"}]}
