"""Description of a memory provider's back end for the scenarios: connection, faults and contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from everthread.ports.memory import MemoryProvider
from everthread.testing.contracts.memory_provider import Faults
from everthread.testing.recording_provider import StoredEntry


@dataclass(frozen=True)
class ProviderBackend:
    provider: str
    """Class as `module:Name`, created without arguments, also in other processes."""
    settings: dict[str, Any]
    """Arguments of `initialize`, serialisable as JSON."""
    faults: Faults
    held: Callable[[], Sequence[StoredEntry]]
    """Contents as effects, oldest first."""
    settles_s: float = 0.0
    """Seconds until recall finds a delivery."""
    parent_of: Callable[[str], str] | None = None
    """Return the parent that the back end stores for a session; None if it stores no parents."""
    keeps_closes: bool = True
    """True if `held` shows closes."""
    knows_no_keys: bool = False
    """True if the back end cannot deduplicate deliveries."""
    attempt_s: float = 0.2
    """Upper bound of a delivery without faults. Longer ones are cancelled where possible."""
    tool: tuple[str, str] | None = None
    """Search tool of the provider, and the name of its argument."""

    def made(self) -> MemoryProvider:
        module, _, name = self.provider.partition(":")
        return getattr(import_module(module), name)()

    def turns(self, session_id: str) -> list[str]:
        return [one.text for one in self.held() if (one.session_id, one.kind) == (session_id, "turn")]

    def closes(self, session_id: str) -> list[str]:
        return [one.text for one in self.held() if (one.session_id, one.kind) == (session_id, "close")]
