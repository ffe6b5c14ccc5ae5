"""Interfaces of the core to the outside; adapters implement them.

| module | contents |
|---|---|
| `platform` | chat platforms: incoming updates, outgoing messages |
| `model` | model endpoints: requests and streamed answers |
| `tools` | tools that the agent runs |
| `context` | context engines that summarise long conversations |
| `memory` | memory providers and their hooks |
| `transcriber` | speech to text |
| `lanes` | queues that one worker drains at a time, across processes |
| `clock` | time |
"""

from everthread.ports.clock import Clock
from everthread.ports.context import ContextEngine
from everthread.ports.lanes import Drain, Lanes
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from everthread.ports.model import ModelClient
from everthread.ports.platform import Platform
from everthread.ports.tools import Tool

__all__ = [
    "Capability",
    "Clock",
    "ContextEngine",
    "Drain",
    "Lanes",
    "MemoryProvider",
    "ModelClient",
    "Platform",
    "RecallItem",
    "Scorecard",
    "Tool",
]
