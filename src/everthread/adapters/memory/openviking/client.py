"""The requests that OpenViking is asked, and its answers as values. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from everthread.adapters.memory.common.http import NotThere, Wire
from everthread.adapters.memory.openviking.codec import Line, line_in, memories_of
from everthread.domain.errors import Unavailable

MESSAGES_MAX = 100
FOUND_MAX = 1000
GREP_MAX = 10_000
_TRUSTING = ("trusted", "dev")

T = TypeVar("T")


class _Answer(Struct, Generic[T], frozen=True):
    result: T


class _Events(Struct, frozen=True):
    tags: list[str] = field(default_factory=list[str])


class _Extraction(Struct, frozen=True):
    events: _Events = field(default_factory=_Events)


class Meta(Struct, frozen=True):
    """What a session says of itself."""

    message_count: int = 0
    commit_count: int = 0
    total_message_count: int | None = None
    memory_extraction_config: _Extraction = field(default_factory=_Extraction)

    @property
    def tags(self) -> list[str]:
        return self.memory_extraction_config.events.tags

    @property
    def counts(self) -> tuple[int | None, int, int]:
        """As long as these are the same, so is what it holds."""
        return (self.total_message_count, self.message_count, self.commit_count)


class _Listed(Struct, frozen=True):
    session_id: str


class _Commit(Struct, frozen=True):
    task_id: str | None = None


class _Task(Struct, frozen=True):
    status: str


class Found(Struct, frozen=True):
    """A memory."""

    uri: str
    score: float = 0.0
    abstract: str = ""
    content: str = ""
    tags: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return self.content or self.abstract


class _Finds(Struct, frozen=True):
    memories: list[Found] = field(default_factory=list[Found])


class Match(Struct, frozen=True):
    """A line of a file that has the words in it."""

    uri: str
    content: str


class _Matches(Struct, frozen=True):
    matches: list[Match] = field(default_factory=list[Match])


class _Attributes(Struct, frozen=True):
    tags: list[str] = field(default_factory=list[str])


class _Stat(Struct, frozen=True):
    attrs: _Attributes


class _Health(Struct, frozen=True):
    auth_mode: str = ""


class Api:
    """Everybody is a user of their own in our account: who is meant comes first in every request."""

    def __init__(self, provider: str, wire: Wire, account: str) -> None:
        self._provider = provider
        self._wire = wire
        self._account = account
        self._is_checked = False

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def check(self) -> None:
        """Refuse a server that puts everybody's words under the one user whom its key belongs to."""
        mode = (await self._wire.ask("GET", "/health", into=_Health)).auth_mode
        if mode not in _TRUSTING:
            raise Unavailable(
                self._provider,
                "does not keep people apart for us; run it with auth_mode trusted, and give us its root key",
                retry_after_s=60,
            )
        self._is_checked = True

    # Sessions ---------------------------------------------------------------------------------------------------------

    async def session(self, user: str, name: str) -> Meta | None:
        try:
            return await self._ask(user, "GET", f"/sessions/{name}", into=Meta)
        except NotThere:
            return None

    async def sessions(self, user: str) -> list[str]:
        """Some of them, if there are very many."""
        return [one.session_id for one in await self._ask(user, "GET", "/sessions", into=list[_Listed])]

    async def create(self, user: str, name: str, tags: Sequence[str]) -> None:
        """Nothing is committed there but by us."""
        body = {"session_id": name, "auto_commit_policy": None, "memory_extraction_config": {"events": {"tags": tags}}}
        await self._tell(user, "POST", "/sessions", body)

    async def describe(self, user: str, name: str, tags: Sequence[str]) -> None:
        await self._tell(
            user, "PATCH", f"/sessions/{name}/config", {"memory_extraction_config": {"events": {"tags": tags}}}
        )

    async def delete_session(self, user: str, name: str) -> None:
        try:
            await self._tell(user, "DELETE", f"/sessions/{name}")
        except NotThere:
            return

    async def say(self, user: str, name: str, lines: Sequence[Line]) -> None:
        for begin in range(0, len(lines), MESSAGES_MAX):
            messages = [_written(line) for line in lines[begin : begin + MESSAGES_MAX]]
            await self._tell(user, "POST", f"/sessions/{name}/messages/batch", {"messages": messages})

    async def commit(self, user: str, name: str, tags: Sequence[str]) -> str | None:
        """The task that draws memories from all that is said; None if there is nothing."""
        body = {"extraction_metadata": {"event": {"tags": tags}}}
        return (await self._ask(user, "POST", f"/sessions/{name}/commit", body, into=_Commit)).task_id

    async def task(self, user: str, task_id: str) -> str:
        """How it is; nothing of a task that nobody knows."""
        try:
            return (await self._ask(user, "GET", f"/tasks/{task_id}", into=_Task)).status
        except NotThere:
            return ""

    # Files ------------------------------------------------------------------------------------------------------------

    async def names(self, user: str, uri: str) -> list[str]:
        """What is in a folder."""
        query = {"uri": uri, "simple": "true", "show_all_hidden": "true"}
        try:
            found = await self._ask(user, "GET", "/fs/ls", into=list[str], query=query)
        except NotThere:
            return []
        return [each.rstrip("/").rpartition("/")[2] for each in found]

    async def read(self, user: str, uri: str) -> str | None:
        try:
            return await self._ask(user, "GET", "/content/read", into=str, query={"uri": uri})
        except NotThere:
            return None

    async def lines(self, user: str, folder: str) -> tuple[Line, ...]:
        """The messages that are kept there."""
        return tuple(self._lines((await self.read(user, f"{folder}/messages.jsonl")) or ""))

    async def parsed(self, user: str, uri: str, into: type[T]) -> T | None:
        text = await self.read(user, uri)
        return None if text is None else self._decoded(text, into)

    async def write(self, user: str, uri: str, content: str, tags: Sequence[str]) -> None:
        """Returns when it can be found."""
        body = {"uri": uri, "content": content, "mode": "replace", "tags": tags, "wait": True}
        await self._tell(user, "POST", "/content/write", body)

    async def remove(self, user: str, uri: str, *, recursive: bool = False) -> None:
        query: dict[str, str] = {"uri": uri} | ({"recursive": "true"} if recursive else {})
        try:
            await self._tell(user, "DELETE", "/fs", query=query)
        except NotThere:
            return

    async def tags(self, user: str, uri: str) -> list[str] | None:
        try:
            return (await self._ask(user, "GET", "/fs/attrs", into=_Stat, query={"uri": uri})).attrs.tags
        except NotThere:
            return None

    async def tag(self, user: str, uri: str, tags: Sequence[str]) -> None:
        """In the place of all that it has, but for what the server has given it itself."""
        try:
            await self._tell(user, "POST", "/content/set_tags", {"uri": uri, "tags": tags, "mode": "replace"})
        except NotThere:
            return

    # Searching --------------------------------------------------------------------------------------------------------

    async def find(self, user: str, query: str, limit: int) -> list[Found]:
        """The memories that have most to do with a query."""
        return await self._found(user, {"query": query, "limit": limit, "read_content": True})

    async def tagged(self, user: str, tags: Iterable[str]) -> list[Found]:
        return await self._found(user, {"query": "", "limit": FOUND_MAX, "tags": list(tags)})

    async def grep(self, user: str, uri: str, pattern: str) -> list[Match]:
        body = {"uri": uri, "pattern": pattern, "node_limit": GREP_MAX, "level_limit": 20}
        try:
            return (await self._ask(user, "POST", "/search/grep", body, into=_Matches)).matches
        except NotThere:
            return []

    async def _found(self, user: str, body: Mapping[str, object]) -> list[Found]:
        within = {"target_uri": memories_of(user), "context_type": "memory", "level": 2}
        try:
            return (await self._ask(user, "POST", "/search/find", {**body, **within}, into=_Finds)).memories
        except NotThere:
            return []

    # ------------------------------------------------------------------------------------------------------------------

    async def _tell(
        self, user: str, method: str, path: str, body: object = None, *, query: Mapping[str, str | int] | None = None
    ) -> None:
        await self._ask(user, method, path, body, into=Any, query=query)  # pyright: ignore[reportArgumentType]

    async def _ask(
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
        answer = await self._wire.ask(method, f"/api/v1{path}", body, into=_Answer[into], query=query, headers=who)
        return answer.result

    def _lines(self, text: str) -> Iterable[Line]:
        # Not splitlines: what people say may have other line ends in it.
        for row in text.split("\n"):
            if row.strip():
                line = line_in(row)
                if line is None:
                    raise Unavailable(self._provider, "keeps a message that can't be read")
                yield line

    def _decoded(self, text: str, into: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=into)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unavailable(self._provider, f"keeps what can't be read ({type(error).__name__})") from None


def _written(line: Line) -> dict[str, object]:
    message: dict[str, object] = {"role": line.role, "content": line.text}
    if line.mark is not None:
        message |= {"source_message_ids": [str(line.mark)], "turn_id": str(line.mark.seq)}
    return message | ({"created_at": line.at} if line.at else {})
