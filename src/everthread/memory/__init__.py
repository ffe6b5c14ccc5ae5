"""Long-term memory: deliver session logs to providers, recall from them, and keep curated notes as files.

In the order of data flow:

| module | contents |
|---|---|
| `manager` | `MemoryManager`: everything the agent asks of memory |
| `delivery` | move the providers' cursors along the sessions' logs |
| `delivery_results` | record a delivery: done, retried later, or parked |
| `pending_entry` | find the next log entry for a provider |
| `backfill` | deliver the sessions from before a provider was configured |
| `provider_calls` | call hooks with a time limit |
| `legacy_providers` | adapt providers of older contracts |
| `circuit_breaker` | pause providers that fail |
| `recall` | merge and render memories |
| `note_files` | MEMORY.md and USER.md |
"""

from everthread.memory.backfill import Backfill
from everthread.memory.delivery import DeliveryService, ProviderStatus
from everthread.memory.manager import MemoryManager
from everthread.memory.note_files import NoteFiles
from everthread.memory.recall import Recall

__all__ = ["Backfill", "DeliveryService", "MemoryManager", "NoteFiles", "ProviderStatus", "Recall"]
