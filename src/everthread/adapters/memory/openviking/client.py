"""HTTP client of OpenViking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from everthread.adapters.memory.common.http import JsonHttpClient, ResourceNotFound, unless_missing
from everthread.adapters.memory.openviking.codec import SessionMessage, memories_uri, parse_message
from everthread.domain.errors import Unavailable

MESSAGES_MAX = 100
TAGGED_MAX = 1000
GREP_MAX = 10_000
_MULTI_USER_MODES = ("trusted", "dev")

T = TypeVar("T")


class _VikingResponse(Struct, Generic[T], frozen=True):
    result: T


class _EventConfig(Struct, frozen=True):
    tags: list[str] = field(default_factory=list[str])


class _ExtractionConfig(Struct, frozen=True):
    events: _EventConfig = field(default_factory=_EventConfig)


class SessionInfo(Struct, frozen=True):
    """State of a session as the server reports it."""

    message_count: int = 0
    commit_count: int = 0
    total_message_count: int | None = None
    memory_extraction_config: _ExtractionConfig = field(default_factory=_ExtractionConfig)

    @property
    def tags(self) -> list[str]:
        return self.memory_extraction_config.events.tags

    @property
    def counts(self) -> tuple[int | None, int, int]:
        """While these are unchanged, so are the messages and archives of the session."""
        return (self.total_message_count, self.message_count, self.commit_count)


class _ListedSession(Struct, frozen=True):
    session_id: str


class _CommitResponse(Struct, frozen=True):
    task_id: str | None = None


class _TaskStatus(Struct, frozen=True):
    status: str


class VikingMemory(Struct, frozen=True):
    uri: str
    score: float = 0.0
    abstract: str = ""
    content: str = ""
    tags: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return self.content or self.abstract


class _FindResponse(Struct, frozen=True):
    memories: list[VikingMemory] = field(default_factory=list[VikingMemory])


class GrepMatch(Struct, frozen=True):
    """A line of a file that matches a pattern."""

    uri: str
    content: str


class _GrepResponse(Struct, frozen=True):
    matches: list[GrepMatch] = field(default_factory=list[GrepMatch])


class _FileAttributes(Struct, frozen=True):
    tags: list[str] = field(default_factory=list[str])


class _FileInfo(Struct, frozen=True):
    attrs: _FileAttributes


class _HealthResponse(Struct, frozen=True):
    auth_mode: str = ""


class OpenVikingClient:
    """Each owner is a user in our account; the user is the first argument of every request."""

    def __init__(self, provider: str, http: JsonHttpClient, account: str) -> None:
        self._provider = provider
        self._http = http
        self._account = account
        self._is_checked = False

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        """Raise `Unavailable` if the server stores everything under the single user of its key."""
        mode = (await self._http.request("GET", "/health", into=_HealthResponse)).auth_mode
        if mode not in _MULTI_USER_MODES:
            raise Unavailable(
                self._provider,
                "does not keep users apart; run it with auth_mode trusted, and use its root key",
                retry_after_s=60,
            )
        self._is_checked = True

    # Sessions ---------------------------------------------------------------------------------------------------------

    async def session(self, user: str, name: str) -> SessionInfo | None:
        return await unless_missing(self._request(user, "GET", f"/sessions/{name}", into=SessionInfo), None)

    async def sessions(self, user: str) -> list[str]:
        """List sessions; not all of them if there are very many."""
        return [one.session_id for one in await self._request(user, "GET", "/sessions", into=list[_ListedSession])]

    async def create(self, user: str, name: str, tags: Sequence[str]) -> None:
        """Create a session that the server does not commit by itself."""
        body = {"session_id": name, "auto_commit_policy": None, "memory_extraction_config": {"events": {"tags": tags}}}
        await self._send(user, "POST", "/sessions", body)

    async def set_tags(self, user: str, name: str, tags: Sequence[str]) -> None:
        await self._send(
            user, "PATCH", f"/sessions/{name}/config", {"memory_extraction_config": {"events": {"tags": tags}}}
        )

    async def delete_session(self, user: str, name: str) -> None:
        with suppress(ResourceNotFound):
            await self._send(user, "DELETE", f"/sessions/{name}")

    async def append(self, user: str, name: str, messages: Sequence[SessionMessage]) -> None:
        for begin in range(0, len(messages), MESSAGES_MAX):
            batch = [_message_body(message) for message in messages[begin : begin + MESSAGES_MAX]]
            await self._send(user, "POST", f"/sessions/{name}/messages/batch", {"messages": batch})

    async def commit(self, user: str, name: str, tags: Sequence[str]) -> str | None:
        """Start the task that extracts memories from all messages; None if there are none."""
        body = {"extraction_metadata": {"event": {"tags": tags}}}
        return (await self._request(user, "POST", f"/sessions/{name}/commit", body, into=_CommitResponse)).task_id

    async def task_status(self, user: str, task_id: str) -> str:
        """Return the status of a task; empty if the task is unknown."""
        unknown = _TaskStatus("")
        return (await unless_missing(self._request(user, "GET", f"/tasks/{task_id}", into=_TaskStatus), unknown)).status

    # Files ------------------------------------------------------------------------------------------------------------

    async def list_folder(self, user: str, uri: str) -> list[str]:
        """List the names in a folder."""
        query = {"uri": uri, "simple": "true", "show_all_hidden": "true"}
        found = await unless_missing(self._request(user, "GET", "/fs/ls", into=list[str], query=query), ())
        return [each.rstrip("/").rpartition("/")[2] for each in found]

    async def read(self, user: str, uri: str) -> str | None:
        return await unless_missing(self._request(user, "GET", "/content/read", into=str, query={"uri": uri}), None)

    async def messages(self, user: str, folder: str) -> tuple[SessionMessage, ...]:
        """Read the messages stored in a folder."""
        return tuple(self._parse_messages((await self.read(user, f"{folder}/messages.jsonl")) or ""))

    async def read_json(self, user: str, uri: str, into: type[T]) -> T | None:
        text = await self.read(user, uri)
        return None if text is None else self._decode_json(text, into)

    async def write(self, user: str, uri: str, content: str, tags: Sequence[str]) -> None:
        """Write a file and wait until it is indexed."""
        body = {"uri": uri, "content": content, "mode": "replace", "tags": tags, "wait": True}
        await self._send(user, "POST", "/content/write", body)

    async def remove(self, user: str, uri: str, *, recursive: bool = False) -> None:
        query: dict[str, str] = {"uri": uri} | ({"recursive": "true"} if recursive else {})
        with suppress(ResourceNotFound):
            await self._send(user, "DELETE", "/fs", query=query)

    async def tags(self, user: str, uri: str) -> list[str] | None:
        info = await unless_missing(self._request(user, "GET", "/fs/attrs", into=_FileInfo, query={"uri": uri}), None)
        return info and info.attrs.tags

    async def tag_file(self, user: str, uri: str, tags: Sequence[str]) -> None:
        """Replace the tags of a file; the server's own tags stay."""
        with suppress(ResourceNotFound):
            await self._send(user, "POST", "/content/set_tags", {"uri": uri, "tags": tags, "mode": "replace"})

    # Search -----------------------------------------------------------------------------------------------------------

    async def search(self, user: str, query: str, limit: int) -> list[VikingMemory]:
        """Search memories by meaning, best first."""
        return await self._search(user, {"query": query, "limit": limit, "read_content": True})

    async def find_tagged(self, user: str, tags: Iterable[str]) -> list[VikingMemory]:
        return await self._search(user, {"query": "", "limit": TAGGED_MAX, "tags": list(tags)})

    async def grep(self, user: str, uri: str, pattern: str) -> list[GrepMatch]:
        body = {"uri": uri, "pattern": pattern, "node_limit": GREP_MAX, "level_limit": 20}
        request = self._request(user, "POST", "/search/grep", body, into=_GrepResponse)
        return (await unless_missing(request, _GrepResponse())).matches

    async def _search(self, user: str, body: Mapping[str, object]) -> list[VikingMemory]:
        body = {**body, "target_uri": memories_uri(user), "context_type": "memory", "level": 2}
        request = self._request(user, "POST", "/search/find", body, into=_FindResponse)
        return (await unless_missing(request, _FindResponse())).memories

    # ------------------------------------------------------------------------------------------------------------------

    async def _send(
        self, user: str, method: str, path: str, body: object = None, *, query: Mapping[str, str | int] | None = None
    ) -> None:
        await self._request(user, method, path, body, into=Any, query=query)  # pyright: ignore[reportArgumentType]

    async def _request(
        self,
        user: str,
        method: str,
        path: str,
        body: object = None,
        *,
        into: type[T],
        query: Mapping[str, str | int] | None = None,
    ) -> T:
        if not self._is_checked:
            await self.check()
        who = {"X-OpenViking-Account": self._account, "X-OpenViking-User": user}
        response = await self._http.request(
            method, f"/api/v1{path}", body, into=_VikingResponse[into], query=query, headers=who
        )
        return response.result

    def _parse_messages(self, text: str) -> Iterable[SessionMessage]:
        # Not splitlines: messages may contain other line separators.
        for row in text.split("\n"):
            if row.strip():
                message = parse_message(row)
                if message is None:
                    raise Unavailable(self._provider, "a stored message can't be read")
                yield message

    def _decode_json(self, text: str, into: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=into)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unavailable(self._provider, f"a stored file can't be read ({type(error).__name__})") from None


def _message_body(message: SessionMessage) -> dict[str, object]:
    body: dict[str, object] = {"role": message.role, "content": message.text}
    if message.mark is not None:
        body |= {"source_message_ids": [str(message.mark)], "turn_id": str(message.mark.seq)}
    return body | ({"created_at": message.at} if message.at else {})
