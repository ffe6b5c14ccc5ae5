"""Contract of stores. Subclass `StoreContract` in a test module and define one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            async def open_store() -> Store:
                return await MyStore.open(tmp_path / "everthread.db")

            return open_store

Each call of `open_store` returns a new handle; all handles of one test share one storage, which is empty at first. The
tests close the handles that they don't crash. Override `crash` if needed: by default a handle crashes by being dropped.

| module | tests |
|---|---|
| `fixtures` | helpers of all tests |
| `transactions` | units of work; singletons and uniqueness |
| `attachments` | attachments of inbound messages |
| `turns` | running turns, session lists |
| `session_views` | views along the lineage, session log |
| `event_log` | following an owner's events, pages of the session list |
| `cursors_and_leases` | cursors, leases, timers and hooks |
| `backfill` | copying earlier sessions to a provider |
| `reviews` | review windows |
| `schedules` | scheduled tasks and their occurrences |
| `search_and_erasure` | search, recall, forgetting, notes |
| `pairings` | guests, pairing codes, wrong codes |
| `api_keys` | API keys |
"""

from everthread.testing.contracts.store.api_keys import ApiKeyContract
from everthread.testing.contracts.store.attachments import AttachmentContract
from everthread.testing.contracts.store.backfill import BackfillContract
from everthread.testing.contracts.store.cursors_and_leases import CursorAndLeaseContract
from everthread.testing.contracts.store.event_log import EventLogContract
from everthread.testing.contracts.store.fixtures import OpenStore
from everthread.testing.contracts.store.pairings import PairingContract
from everthread.testing.contracts.store.reviews import ReviewContract
from everthread.testing.contracts.store.schedules import ScheduleContract
from everthread.testing.contracts.store.search_and_erasure import SearchAndErasureContract
from everthread.testing.contracts.store.session_views import SessionViewContract
from everthread.testing.contracts.store.transactions import TransactionContract
from everthread.testing.contracts.store.turns import TurnContract

__all__ = ["OpenStore", "StoreContract"]


class StoreContract(
    TransactionContract,
    TurnContract,
    SessionViewContract,
    SearchAndErasureContract,
    CursorAndLeaseContract,
    BackfillContract,
    ReviewContract,
    PairingContract,
    ApiKeyContract,
    ScheduleContract,
    AttachmentContract,
    EventLogContract,
):
    """Guarantees of a store that the core relies on."""
