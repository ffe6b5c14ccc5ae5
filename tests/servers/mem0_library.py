"""The real Mem0 library with a stub model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mem0_entries import parent_of, read_files, stored_entries
from tests.provider_backend import ProviderBackend
from tests.servers.environments import environment
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.mem0.provider import Mem0
from everthread.testing.backend_model.server import BackendModel
from everthread.testing.recording_provider import StoredEntry

ASKS = r"POST /v1/(embeddings|chat/completions)"


@dataclass(frozen=True)
class Mem0Library:
    """A proxy in front of the model that Mem0 uses, and a folder for its files."""

    python: str
    model: BackendModel
    door: FaultProxyServer
    folder: Path

    def settings(self, *, infer: bool = True, address: str = "") -> dict[str, Any]:
        """Settings, serialisable as JSON."""
        endpoint = {"model": "stub", "embedder": "stub", "model_url": f"{address or self.door.address}/v1"}
        return {"folder": str(self.folder), "python": self.python, "infer": infer, "model_key": "k-1234", **endpoint}

    def stored_entries(self) -> list[StoredEntry]:
        return stored_entries(read_files(self.folder))

    def back_end(self, *, infer: bool = True) -> ProviderBackend:
        return ProviderBackend(
            f"{Mem0.__module__}:{Mem0.__qualname__}",
            self.settings(infer=infer),
            self.door,
            self.stored_entries,
            parent_of=lambda session: parent_of(session, read_files(self.folder)),
            keeps_closes=False,
            tool=("mem0_search", "query"),
        )


def child_of(provider: Mem0) -> int:
    """Process that runs the library."""
    memories: Any = provider._opened  # noqa: SLF001
    return memories._child.process.pid  # noqa: SLF001


@contextmanager
def mem0(folder: Path) -> Iterator[Mem0Library]:
    python = str(environment("mem0") / "bin" / "python")
    with BackendModel().in_thread() as model, FaultProxyServer(f"http://127.0.0.1:{model.port}", ASKS) as door:
        yield Mem0Library(python, model, door, folder)
