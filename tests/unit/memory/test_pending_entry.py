from pathlib import Path

from tests.runtime import CLI, AsyncDiary, CoreFixture

from everthread.domain.events import SessionOpened, TurnCommitted
from everthread.memory.pending_entry import PendingEntry, next_entry
from everthread.store.unit_of_work import UnitOfWork


async def test_entries_come_in_the_order_of_the_log_once_the_lane_is_due(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, AsyncDiary()) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        await core.settled()
        assert await core.store.read(lambda uow: next_entry(uow, "diary", session_id, 1e12)) is None
        await core.store.write(lambda uow: uow.cursors.restart("diary", session_id, 5.0))

        def read(uow: UnitOfWork) -> list[PendingEntry | None]:
            early, first = (next_entry(uow, "diary", session_id, now) for now in (4.0, 5.0))
            return [early, first]

        early, first = await core.store.read(read)
        assert early is None
        assert first is not None
        assert isinstance(first.event, SessionOpened)
        assert first.entry.seq == 1
        following = await core.store.read(lambda uow: uow.log.after(session_id, first.entry.seq))
        assert following is not None
        assert isinstance(await core.store.read(lambda uow: uow.log.event(following)), TurnCommitted)
