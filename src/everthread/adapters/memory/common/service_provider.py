"""Base class of the memory providers that talk to a service.

It holds the client, answers `health`, offers the tools, bounds queries, and dispatches the hooks whose arguments every
service needs in the same form: notes, session switches and forgetting. A subclass sets the class attributes, assigns
`self._client` in `initialize`, and implements the underscored methods.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from everthread.adapters.memory.common.http import Sleep
from everthread.adapters.memory.common.tools import TextTool, TextTools, bullet_list
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Cause, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard, is_outdated

RESULTS_MAX = 100
TOOL_RESULTS = 10


class ServiceClient(Protocol):
    async def check(self) -> None:
        """Raise a `ProviderError` if the service can't be used."""
        ...

    async def aclose(self) -> None: ...


ClientT = TypeVar("ClientT", bound=ServiceClient)


class NoteRevision(Struct, frozen=True):
    """A note as it reads now. An empty `content` means that it was removed."""

    id: str
    version: int
    target: str
    content: str
    at: float | None


class ServiceProvider(MemoryProvider, ABC, Generic[ClientT]):
    service: ClassVar[str]
    """Name of the provider."""
    tools: ClassVar[Sequence[TextTool]] = ()
    query_chars_max: ClassVar[int] = 2_000

    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:  # noqa: TID251 - providers are made without a clock
        super().__init__()
        self.name = self.service
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.HEALTH | Capability.DEDUPLICATES
        self.scorecard = Scorecard(redelivery="done", order="done", forget="done")
        self._sleep = sleep
        self._tools = TextTools(self.name, self.tools, chars_max=self.query_chars_max)
        self._opened: ClientT | None = None

    @property
    def _client(self) -> ClientT:
        if self._opened is None:
            raise Unavailable(self.name, "is shut down")
        return self._opened

    async def shutdown(self) -> None:
        client, self._opened = self._opened, None
        if client is not None:
            await client.aclose()

    async def health(self) -> str:
        try:
            await self._client.check()
        except ProviderError as error:
            return str(error)
        return "ok"

    # Recall and tools -------------------------------------------------------------------------------------------------

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        text, count = query.strip()[: self.query_chars_max], min(limit, RESULTS_MAX)
        return await self._recall(text, ref, count) if text and count > 0 else ()

    def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._tools.schemas

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], *, ref: SessionRef) -> str:
        """Run a tool on the memory of the owner of the calling turn."""
        return await self._call_tool(name, self._tools.argument(name, args), ref)

    async def _search_text(self, query: str, ref: SessionRef) -> str:
        """Format what is recalled for a query as the result of a tool."""
        return bullet_list(item.text for item in await self.prefetch(query, ref=ref, limit=TOOL_RESULTS))

    # Log entries ------------------------------------------------------------------------------------------------------

    async def on_session_switch(
        self, new_session_id: str, *, parent_session_id: str = "", ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        if more.get("rewound"):
            await self._rewind(ref, tuple(more.get("turns", ())))
        else:
            # The session that was left for a resumed one is not its parent.
            is_resumed = more.get("reason") == Cause.RESUME
            await self._open_session(ref, "" if is_resumed else parent_session_id, delivery)

    async def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> None:
        """Replace the earlier versions of a note, in whichever session they were written."""
        if is_outdated(metadata):
            return
        note_id, version = str(metadata.get("note_id", "")), int(metadata.get("version", 0))
        content = content if action != "remove" and content.strip() else ""
        await self._write_note(NoteRevision(note_id, version, target, content, metadata.get("at")), ref, delivery)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        match scope:
            case ForgetScope.SESSION:
                await self._forget_session(ref)
            case ForgetScope.OWNER:
                await self._forget_owner(ref.owner)
            case ForgetScope.FACT:
                if note_id:
                    await self._forget_note(ref.owner, note_id)
                if text.strip():
                    await self._forget_text(ref.owner, text, delivery)

    # Implemented by each service --------------------------------------------------------------------------------------

    @abstractmethod
    async def _recall(self, query: str, ref: SessionRef, limit: int) -> Sequence[RecallItem]: ...

    @abstractmethod
    async def _call_tool(self, name: str, argument: str, ref: SessionRef) -> str: ...

    async def _open_session(self, ref: SessionRef, parent_id: str, delivery: Delivery) -> None:
        """Record that a session was opened. `parent_id` is empty if it has no parent."""

    @abstractmethod
    async def _rewind(self, ref: SessionRef, turns: Sequence[int]) -> None:
        """Undo these turns of a session."""

    @abstractmethod
    async def _write_note(self, note: NoteRevision, ref: SessionRef, delivery: Delivery) -> None: ...

    @abstractmethod
    async def _forget_session(self, ref: SessionRef) -> None: ...

    @abstractmethod
    async def _forget_owner(self, owner: str) -> None: ...

    @abstractmethod
    async def _forget_note(self, owner: str, note_id: str) -> None: ...

    @abstractmethod
    async def _forget_text(self, owner: str, text: str, delivery: Delivery) -> None:
        """Remove this text, literally, from everything that contains it."""
