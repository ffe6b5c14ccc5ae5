"""Extracted memories that a commit changed."""

from __future__ import annotations

from typing import Any

import msgspec

from everthread.adapters.memory.openviking.memory_files import MemoryFiles


class Files:
    """Fake of the file operations of the server."""

    def __init__(self, **files: str) -> None:
        self.files = dict(files)
        self.changes: Any = None

    async def read_json(self, user: str, uri: str, into: Any) -> Any:
        return msgspec.convert(self.changes, into)

    async def read(self, user: str, uri: str) -> str | None:
        return self.files.get(uri)

    async def write(self, user: str, uri: str, content: str, tags: list[str]) -> None:
        self.files[uri] = content

    async def remove(self, user: str, uri: str, *, recursive: bool = False) -> None:
        self.files.pop(uri, None)


async def test_undo_restores_files_of_a_commit_and_removes_those_changed_since() -> None:
    files = Files(made="new", changed="after", again="after and more", untouched="before", other="x")
    files.changes = {
        "operations": {
            "adds": [{"uri": "made", "after": "new"}],
            "updates": [
                {"uri": uri, "before": "before", "after": "after"} for uri in ("changed", "again", "untouched", "gone")
            ],
        }
    }
    memories = MemoryFiles(files)  # pyright: ignore[reportArgumentType] - the part that it calls
    for _ in range(2):
        await memories.undo("ann", "some-archive")
        assert files.files == {"changed": "before", "untouched": "before", "other": "x"}
