"""The requests that Honcho is asked, and its answers as values. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from everthread.adapters.memory.common.http import Wire

PAGE_SIZE = 100
MESSAGES_MAX = 100

Metadata = dict[str, Any]


class Said(Struct, frozen=True):
    """A message as Honcho keeps it."""

    id: str
    content: str
    peer_id: str
    session_id: str
    metadata: Metadata = field(default_factory=dict[str, Any])
    created_at: str = ""


class Saying(Struct, frozen=True, omit_defaults=True):
    """A message on its way to Honcho."""

    peer_id: str
    content: str
    metadata: Metadata
    created_at: str | UnsetType = UNSET


class Conclusion(Struct, frozen=True):
    """What Honcho holds true of a peer."""

    id: str
    content: str
    observed_id: str
    session_id: str | None = None


class Home(Struct, frozen=True):
    """A session of Honcho's."""

    id: str
    metadata: Metadata = field(default_factory=dict[str, Any])


class _Messages(Struct, frozen=True):
    items: list[Said]
    pages: int | None = None


class _Conclusions(Struct, frozen=True):
    items: list[Conclusion]
    pages: int | None = None


class _Homes(Struct, frozen=True):
    items: list[Home]
    pages: int | None = None


class _Answer(Struct, frozen=True):
    content: str | None = None


class _Card(Struct, frozen=True):
    peer_card: list[str] | None = None


class _Queue(Struct, frozen=True):
    pending_work_units: int = 0
    in_progress_work_units: int = 0


class Api:
    def __init__(self, wire: Wire, workspace: str) -> None:
        self._wire = wire
        self._workspace = workspace
        self._at = f"/v3/workspaces/{workspace}"
        self._is_there = False

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def get_or_create_workspace(self) -> None:
        if not self._is_there:
            await self._wire.tell("POST", "/v3/workspaces", {"id": self._workspace})
            self._is_there = True

    # Sessions ---------------------------------------------------------------------------------------------------------

    async def get_or_create_session(self, name: str, peers: Mapping[str, object]) -> Home:
        """What is known of it already stays."""
        await self.get_or_create_workspace()
        return await self._wire.ask("POST", f"{self._at}/sessions", {"id": name, "peers": peers}, into=Home)

    async def describe_session(self, name: str, metadata: Metadata) -> None:
        await self._wire.tell("PUT", f"{self._at}/sessions/{name}", {"metadata": metadata})

    async def delete_session(self, name: str) -> None:
        """Accepted now, done later."""
        await self._wire.tell("DELETE", f"{self._at}/sessions/{name}")

    async def sessions(self, **metadata: str) -> list[Home]:
        """Those with this in their metadata."""
        await self.get_or_create_workspace()
        found: list[Home] = []
        async for page in self._pages("sessions/list", {"metadata": metadata}, _Homes):
            found += page.items
        return found

    # Messages ---------------------------------------------------------------------------------------------------------

    async def append(self, session: str, messages: Sequence[Saying]) -> None:
        for begin in range(0, len(messages), MESSAGES_MAX):
            some = messages[begin : begin + MESSAGES_MAX]
            await self._wire.tell("POST", f"{self._at}/sessions/{session}/messages", {"messages": some})

    async def messages(self, session: str, **metadata: Any) -> list[Said]:
        """Oldest first. All of them, unless something of their metadata is given."""
        found: list[Said] = []
        filters = {"metadata": metadata} if metadata else None
        async for page in self._pages(f"sessions/{session}/messages/list", filters, _Messages):
            found += page.items
        return found

    async def describe_message(self, message: Said, metadata: Metadata) -> None:
        path = f"{self._at}/sessions/{message.session_id}/messages/{message.id}"
        await self._wire.tell("PUT", path, {"metadata": metadata})

    async def search(self, query: str, peers: Sequence[str], limit: int) -> list[Said]:
        await self.get_or_create_workspace()
        body = {"query": query, "limit": limit, "filters": {"peer_id": {"in": list(peers)}}}
        return await self._wire.ask("POST", f"{self._at}/search", body, into=list[Said])

    # Conclusions ------------------------------------------------------------------------------------------------------

    async def conclude(self, contents: Sequence[str], peer: str, session: str) -> None:
        whose = {"observer_id": peer, "observed_id": peer, "session_id": session}
        for begin in range(0, len(contents), MESSAGES_MAX):
            some = [{"content": content, **whose} for content in contents[begin : begin + MESSAGES_MAX]]
            await self._wire.tell("POST", f"{self._at}/conclusions", {"conclusions": some})

    async def conclusions(self, **filters: str) -> list[Conclusion]:
        await self.get_or_create_workspace()
        found: list[Conclusion] = []
        async for page in self._pages("conclusions/list", filters, _Conclusions):
            found += page.items
        return found

    async def query(self, query: str, peer: str, limit: int) -> list[Conclusion]:
        await self.get_or_create_workspace()
        body = {"query": query, "top_k": limit, "filters": {"observer_id": peer, "observed_id": peer}}
        return await self._wire.ask("POST", f"{self._at}/conclusions/query", body, into=list[Conclusion])

    async def delete_conclusion(self, id: str) -> None:
        await self._wire.tell("DELETE", f"{self._at}/conclusions/{id}")

    # Peers, the queue -------------------------------------------------------------------------------------------------

    async def chat(self, peer: str, question: str) -> str:
        await self.get_or_create_workspace()
        answer = await self._wire.ask("POST", f"{self._at}/peers/{peer}/chat", {"query": question}, into=_Answer)
        return answer.content or ""

    async def card(self, peer: str) -> list[str]:
        await self.get_or_create_workspace()
        return (await self._wire.ask("GET", f"{self._at}/peers/{peer}/card", into=_Card)).peer_card or []

    async def clear_card(self, peer: str) -> None:
        await self._wire.tell("PUT", f"{self._at}/peers/{peer}/card", {"peer_card": []})

    async def waiting(self) -> int:
        """How much of what was said no conclusions were drawn from yet."""
        await self.get_or_create_workspace()
        queue = await self._wire.ask("GET", f"{self._at}/queue/status", into=_Queue)
        return queue.pending_work_units + queue.in_progress_work_units

    async def _pages(
        self, path: str, filters: Mapping[str, object] | None, into: type[Any]
    ) -> AsyncGenerator[Any, None]:
        number, pages = 1, 1
        while number <= pages:
            body = {"filters": filters} if filters else {}
            query = {"page": number, "size": PAGE_SIZE}
            page = await self._wire.ask("POST", f"{self._at}/{path}", body, into=into, query=query)
            yield page
            number, pages = number + 1, page.pages or 1
