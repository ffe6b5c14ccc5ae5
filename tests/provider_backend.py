"""A back end of a memory provider as the scenarios need it: where it is, how it is broken, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from everthread.ports.memory import MemoryProvider
from everthread.testing.contracts.memory_provider import Faults
from everthread.testing.recording_provider import Effect


@dataclass(frozen=True)
class ProviderBackend:
    provider: str
    """Its class, as `module:Name`, which takes no arguments: it is made in other processes too."""
    settings: dict[str, Any]
    """What `initialize` is handed; plain enough for JSON."""
    faults: Faults
    held: Callable[[], Sequence[Effect]]
    """What it holds, oldest first, as the contract kit wants it."""
    settles_s: float = 0.0
    """How long it may take until it finds what it was given."""
    parent_of: Callable[[str], str] | None = None
    """The parent that it knows of a session of ours; None if it keeps no parents."""
    keeps_closes: bool = True
    """Whether a close leaves something that `held` shows."""
    knows_no_keys: bool = False
    """Whether it may be told again what it has, and keep it twice."""
    attempt_s: float = 0.2
    """How long a delivery takes at most if nothing is spoiled: what takes longer is cut off, as soon as it can be."""
    tool: tuple[str, str] | None = None
    """A tool of the provider's that searches, and the name of its argument."""

    def made(self) -> MemoryProvider:
        module, _, name = self.provider.partition(":")
        return getattr(import_module(module), name)()

    def turns(self, session_id: str) -> list[str]:
        return [one.text for one in self.held() if (one.session_id, one.kind) == (session_id, "turn")]

    def closes(self, session_id: str) -> list[str]:
        return [one.text for one in self.held() if (one.session_id, one.kind) == (session_id, "close")]
