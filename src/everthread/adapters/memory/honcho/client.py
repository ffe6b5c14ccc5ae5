"""HTTP client of Honcho."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from everthread.adapters.memory.common.http import JsonHttpClient, ResourceNotFound, unless_missing
from everthread.domain.errors import Unavailable

PAGE_SIZE = 100
MESSAGES_MAX = 100

Metadata = dict[str, Any]
T = TypeVar("T")


class HonchoMessage(Struct, frozen=True):
    id: str
    content: str
    peer_id: str
    session_id: str
    metadata: Metadata = field(default_factory=dict[str, Any])
    created_at: str = ""


class NewMessage(Struct, frozen=True, omit_defaults=True):
    peer_id: str
    content: str
    metadata: Metadata
    created_at: str | UnsetType = UNSET


class Conclusion(Struct, frozen=True):
    """A statement about a peer."""

    id: str
    content: str
    observed_id: str
    session_id: str | None = None


class HonchoSession(Struct, frozen=True):
    id: str
    metadata: Metadata = field(default_factory=dict[str, Any])


class _HonchoPage(Struct, Generic[T], frozen=True):
    items: list[T]
    pages: int | None = None


class _ChatResponse(Struct, frozen=True):
    content: str | None = None


class _PeerCard(Struct, frozen=True):
    peer_card: list[str] | None = None


class HonchoClient:
    def __init__(self, provider: str, http: JsonHttpClient, workspace: str) -> None:
        self._provider = provider
        self._http = http
        self._workspace = workspace
        self._path = f"/v3/workspaces/{workspace}"
        self._has_workspace = False

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        await self.get_or_create_workspace()
        try:
            await self._http.send("GET", f"{self._path}/queue/status")
        except ResourceNotFound:
            raise Unavailable(self._provider, f"no workspace {self._workspace!r}; check the settings") from None

    async def get_or_create_workspace(self) -> None:
        if not self._has_workspace:
            await self._http.send("POST", "/v3/workspaces", {"id": self._workspace})
            self._has_workspace = True

    # Sessions ---------------------------------------------------------------------------------------------------------

    async def get_or_create_session(self, name: str, peers: Mapping[str, object]) -> HonchoSession:
        """Return a session. The metadata of an existing one stay."""
        await self.get_or_create_workspace()
        return await self._http.request(
            "POST", f"{self._path}/sessions", {"id": name, "peers": peers}, into=HonchoSession
        )

    async def set_session_metadata(self, name: str, metadata: Metadata) -> None:
        await self._http.send("PUT", f"{self._path}/sessions/{name}", {"metadata": metadata})

    async def delete_session(self, name: str) -> None:
        """Request the deletion of a session. The server carries it out later."""
        await self._http.send("DELETE", f"{self._path}/sessions/{name}")

    async def sessions(self, **metadata: str) -> list[HonchoSession]:
        """List the sessions with these metadata."""
        await self.get_or_create_workspace()
        return await self._all("sessions/list", {"metadata": metadata}, HonchoSession)

    # Messages ---------------------------------------------------------------------------------------------------------

    async def append(self, session: str, messages: Sequence[NewMessage]) -> None:
        for begin in range(0, len(messages), MESSAGES_MAX):
            batch = messages[begin : begin + MESSAGES_MAX]
            await self._http.send("POST", f"{self._path}/sessions/{session}/messages", {"messages": batch})

    async def messages(self, session: str, **metadata: Any) -> list[HonchoMessage]:
        """List the messages of a session with these metadata, oldest first."""
        filters = {"metadata": metadata} if metadata else None
        return await self._all(f"sessions/{session}/messages/list", filters, HonchoMessage)

    async def set_message_metadata(self, message: HonchoMessage, metadata: Metadata) -> None:
        path = f"{self._path}/sessions/{message.session_id}/messages/{message.id}"
        await self._http.send("PUT", path, {"metadata": metadata})

    async def search_messages(self, query: str, peers: Sequence[str], limit: int) -> list[HonchoMessage]:
        await self.get_or_create_workspace()
        body = {"query": query, "limit": limit, "filters": {"peer_id": {"in": list(peers)}}}
        return await self._http.request("POST", f"{self._path}/search", body, into=list[HonchoMessage])

    # Conclusions ------------------------------------------------------------------------------------------------------

    async def add_conclusions(self, contents: Sequence[str], peer: str, session: str) -> None:
        scope = {"observer_id": peer, "observed_id": peer, "session_id": session}
        for begin in range(0, len(contents), MESSAGES_MAX):
            batch = [{"content": content, **scope} for content in contents[begin : begin + MESSAGES_MAX]]
            await self._http.send("POST", f"{self._path}/conclusions", {"conclusions": batch})

    async def conclusions(self, **filters: str) -> list[Conclusion]:
        await self.get_or_create_workspace()
        return await self._all("conclusions/list", filters, Conclusion)

    async def search_conclusions(self, query: str, peer: str, limit: int) -> list[Conclusion]:
        await self.get_or_create_workspace()
        body = {"query": query, "top_k": limit, "filters": {"observer_id": peer, "observed_id": peer}}
        return await self._http.request("POST", f"{self._path}/conclusions/query", body, into=list[Conclusion])

    async def delete_conclusion(self, id: str) -> None:
        await self._http.delete(f"{self._path}/conclusions/{id}")

    # Peers ------------------------------------------------------------------------------------------------------------

    async def chat(self, peer: str, question: str) -> str:
        """Let Honcho's model answer a question about a peer; empty if the peer is unknown."""
        await self.get_or_create_workspace()
        path, body = f"{self._path}/peers/{peer}/chat", {"query": question}
        response = await unless_missing(self._http.request("POST", path, body, into=_ChatResponse), _ChatResponse())
        return response.content or ""

    async def card(self, peer: str) -> list[str]:
        """Return the most important facts about a peer; none if the peer is unknown."""
        await self.get_or_create_workspace()
        path = f"{self._path}/peers/{peer}/card"
        return (await unless_missing(self._http.request("GET", path, into=_PeerCard), _PeerCard())).peer_card or []

    async def clear_card(self, peer: str) -> None:
        await self._http.send("PUT", f"{self._path}/peers/{peer}/card", {"peer_card": []})

    async def _all(self, path: str, filters: Mapping[str, object] | None, item: type[T]) -> list[T]:
        """Read every page of a list."""
        items: list[T] = []
        number, pages = 1, 1
        while number <= pages:
            body = {"filters": filters} if filters else {}
            query = {"page": number, "size": PAGE_SIZE}
            page = await self._http.request("POST", f"{self._path}/{path}", body, into=_HonchoPage[item], query=query)
            items += page.items
            number, pages = number + 1, page.pages or 1
        return items
