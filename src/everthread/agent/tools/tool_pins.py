"""Pinned tools: compare the tools of MCP servers with the definitions that the user approved.

The model sees the approved description of a tool until the user approves a new one; see docs/adr/0049.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.tool_definition import DefinitionText, ToolDefinition, describe_change, show_change
from everthread.ports.clock import Clock
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool
from everthread.store.tool_pins import ToolPin
from everthread.store.unit_of_work import Store

_Name = tuple[str, str]


class ToolChange(Struct, frozen=True):
    """The difference between a tool and its pin."""

    summary: str
    """The change in words, shortened."""
    whole: str
    """All texts that differ; empty if only the server's program or address does."""


class PinnedTools:
    """The pins of a home. `operator` is the owner whose approval pins a tool; that of others counts for one call."""

    def __init__(self, store: Store, clock: Clock, operator: str) -> None:
        self.changed = False
        """True if `describe` may describe a tool in another way since the last `load`."""
        self._store = store
        self._clock = clock
        self._operator = operator
        self._loaded: dict[_Name, ToolPin] = {}

    async def load(self) -> None:
        """Read all pins."""
        pins = await self._store.read(lambda uow: uow.tool_pins.all())
        self._loaded = {(pin.server, pin.tool): pin for pin in pins}
        self.changed = False

    def describe(self, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """Return the tools with the descriptions that the user approved."""
        return tuple(self._described(tool) for tool in tools)

    def _described(self, tool: Tool) -> Tool:
        definition = tool.definition
        pin = self._loaded.get((definition.server, definition.tool)) if definition is not None else None
        if definition is None or pin is None or pin.digest == definition.digest:
            return tool
        text = DefinitionText.decode(pin.definition)
        return replace(tool, schema=ToolSchema(tool.name, text.description, text.parameters))

    async def change_of(self, definition: ToolDefinition, *, first_use: bool) -> ToolChange | None:
        """Return how the tool differs from its pin; None if it does not. With `first_use`, pin a tool without a pin."""
        pin = await self._store.read_inline(lambda uow: uow.tool_pins.get(definition.server, definition.tool))
        if pin is None and first_use:
            new = self._pin(definition)
            # Another process may have pinned the tool meanwhile.
            pin = await self._store.write_inline(lambda uow: uow.tool_pins.add(new))
        self._note(definition, pin)
        return change_since(pin, definition) if pin is not None else None

    async def approve(self, definition: ToolDefinition, owner: str) -> None:
        """Pin the definition that the owner approved, if the owner is the operator."""
        if owner != self._operator:
            return
        pin = self._pin(definition)
        stored = self._loaded.get((pin.server, pin.tool))
        if stored is None or (stored.identity, stored.digest) != (pin.identity, pin.digest):
            await self._store.write_inline(lambda uow: uow.tool_pins.put(pin))
            self._note(definition, pin)

    def _note(self, definition: ToolDefinition, pin: ToolPin | None) -> None:
        name = definition.server, definition.tool
        loaded = self._loaded.get(name)
        if loaded == pin:
            return
        # A first pin of the current definition changes no description.
        self.changed |= loaded is not None or (pin is not None and pin.digest != definition.digest)
        if pin is not None:
            self._loaded[name] = pin
        else:
            del self._loaded[name]

    def _pin(self, definition: ToolDefinition) -> ToolPin:
        d = definition
        return ToolPin(d.server, d.tool, d.identity, d.digest, d.text.encode(), self._clock.now())


def change_since(pin: ToolPin, definition: ToolDefinition) -> ToolChange | None:
    """Return how a tool differs from its pin; None if it does not."""
    old = ToolDefinition(pin.server, pin.identity, pin.tool, DefinitionText.decode(pin.definition), pin.digest)
    summary = describe_change(old, definition)
    return ToolChange(summary, show_change(old, definition)) if summary else None
