"""Long-term memory: fan-out to any number of providers, delivery by cursors, recall, and curated notes."""

from everthread.memory.delivery import DeliveryService, ProviderStatus
from everthread.memory.manager import MemoryManager
from everthread.memory.note_files import Notebook
from everthread.memory.recall import PendingRecall, Recall

__all__ = ["DeliveryService", "MemoryManager", "Notebook", "PendingRecall", "ProviderStatus", "Recall"]
