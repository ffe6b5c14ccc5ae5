"""The part of OpenViking that sessions need, in memory. It takes the place of the client, without HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from everthread.adapters.memory.openviking.client import GrepMatch, SessionInfo, VikingMemory
from everthread.adapters.memory.openviking.codec import SessionMessage, memories_uri, sessions_uri


@dataclass
class _StoredSession:
    tags: list[str]
    live: list[SessionMessage] = field(default_factory=list[SessionMessage])
    archives: list[list[SessionMessage]] = field(default_factory=list[list[SessionMessage]])


class FakeOpenViking:
    """Extracts one memory from each committed user message. `fails_next` lets the next extractions fail."""

    def __init__(self) -> None:
        self.stored: dict[str, _StoredSession] = {}
        self.memories: dict[str, VikingMemory] = {}
        self.reads = 0
        self.fails_next = 0
        self._failed: set[str] = set()

    async def session(self, user: str, name: str) -> SessionInfo | None:
        found = self.stored.get(name)
        if found is None:
            return None
        total = len(found.live) + sum(len(archive) for archive in found.archives)
        info = {
            "message_count": len(found.live),
            "commit_count": len(found.archives),
            "total_message_count": total,
            "memory_extraction_config": {"events": {"tags": found.tags}},
        }
        return msgspec.convert(info, SessionInfo)

    async def sessions(self, user: str) -> list[str]:
        return list(self.stored)

    async def create(self, user: str, name: str, tags: Sequence[str]) -> None:
        self.stored[name] = _StoredSession(list(tags))

    async def set_tags(self, user: str, name: str, tags: Sequence[str]) -> None:
        self.stored[name].tags = list(tags)

    async def delete_session(self, user: str, name: str) -> None:
        self.stored.pop(name, None)

    async def append(self, user: str, name: str, messages: Sequence[SessionMessage]) -> None:
        self.stored[name].live += messages

    async def messages(self, user: str, folder: str) -> tuple[SessionMessage, ...]:
        self.reads += 1
        name, _, archive = folder.removeprefix(f"{sessions_uri(user)}/").partition("/history/archive_")
        found = self.stored[name]
        return tuple(found.archives[int(archive) - 1] if archive else found.live)

    async def commit(self, user: str, name: str, tags: Sequence[str]) -> str | None:
        session = self.stored[name]
        number = len(session.archives) + 1
        task = f"{name}/history/archive_{number:03d}"
        session.archives.append(session.live)
        if self.fails_next:
            self.fails_next -= 1
            self._failed.add(task)
        else:
            for message in session.live:
                if message.role == "user":
                    uri = f"{memories_uri(user)}/memory-{len(self.memories)}"
                    self.memories[uri] = VikingMemory(uri, content=message.text, tags=list(tags))
        session.live = []
        return task

    async def task_status(self, user: str, task_id: str) -> str:
        return "failed" if task_id in self._failed else "completed"

    async def list_folder(self, user: str, uri: str) -> list[str]:
        is_failed = any(uri.endswith(task) for task in self._failed)
        return [".failed.json"] if is_failed else [".done"]

    async def read_json(self, user: str, uri: str, into: Any) -> Any:
        return None

    async def find_tagged(self, user: str, tags: Iterable[str]) -> list[VikingMemory]:
        return [memory for memory in self.memories.values() if set(tags) <= set(memory.tags)]

    async def grep(self, user: str, uri: str, pattern: str) -> list[GrepMatch]:
        if uri != sessions_uri(user):
            return [GrepMatch(key, one.content) for key, one in self.memories.items() if pattern in one.content]
        return [
            GrepMatch(f"{uri}/{name}/messages.jsonl", message.text)
            for name, found in self.stored.items()
            for message in found.live
            if pattern in message.text
        ]

    async def read(self, user: str, uri: str) -> str | None:
        if uri in self.memories:
            return self.memories[uri].content
        name = uri.removeprefix(f"{sessions_uri(user)}/").partition("/")[0]
        return "\n".join(message.text for message in self.stored[name].live) if name in self.stored else None

    async def write(self, user: str, uri: str, content: str, tags: Sequence[str]) -> None:
        self.memories[uri] = VikingMemory(uri, content=content, tags=list(tags))

    async def tags(self, user: str, uri: str) -> list[str] | None:
        return self.memories[uri].tags if uri in self.memories else None

    async def remove(self, user: str, uri: str, *, recursive: bool = False) -> None:
        if recursive:
            self.memories.clear()
        self.memories.pop(uri, None)
