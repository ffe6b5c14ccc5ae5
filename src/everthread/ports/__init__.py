"""What the core needs from the outside, as small protocols in our own words."""

from everthread.ports.clock import Clock, Embedder
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
    "Embedder",
    "Lanes",
    "MemoryProvider",
    "ModelClient",
    "Platform",
    "RecallItem",
    "Scorecard",
    "Tool",
]
