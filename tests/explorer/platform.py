"""The outside world of an explored process: a chat platform, a provider of memory, and one that lacks most hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everthread.domain.events import Delivery
from everthread.domain.model import SessionRef
from everthread.ports.memory import MemoryProvider, Scorecard
from everthread.ports.platform import Address, Button, Capabilities, Media, Outbound, Take
from tests.simulator.backends import Backend, SimProvider
from tests.simulator.environment import Faults, SimProcess


class RecordingPlatform:
    """A platform that can't repeat a send safely and can't be searched, like most."""

    name = "telegram"
    capabilities = Capabilities(text_chars_max=4000)
    finder = None

    def __init__(self, sent: list[str]) -> None:
        self._sent = sent

    async def send(self, message: Outbound) -> str:
        self._sent.append(message.id)
        return message.id

    async def run(self, take: Take) -> None: ...
    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None: ...
    async def show_typing(self, to: Address) -> None: ...
    async def aclose(self) -> None: ...

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        return b""


class SteadyProcess(SimProcess):
    """A process without latency, so that the explorer alone decides on the order of steps."""

    async def pause(self) -> None: ...


def provider_of(
    backend: Backend, process: str, fault: str = "", began: Callable[[str, str], None] = lambda provider, process: None
) -> MemoryProvider:
    """Create a provider whose first call has the fault."""
    if backend.name == BareProvider.name:
        return BareProvider(backend)
    faults = Faults(provider={backend.name: [fault]} if fault else {})
    return SimProvider(backend, SteadyProcess(process, 0), faults, began)


class BareProvider(MemoryProvider):
    """A provider that implements only `sync_turn`."""

    name = "bare"
    scorecard = Scorecard("done", "done", "done")

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self._backend.keys.add(f"{ref.session_id}:{delivery.seq}")
