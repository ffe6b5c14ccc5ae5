from pathlib import Path

from tests.runtime import CLI, AsyncDiary, CoreFixture

from everthread.domain.events import EntryKind


async def test_a_delegated_result_is_logged_once_per_child(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "go")).ref
        for child in ("one", "one", "two"):
            await core.lifecycle.record_delegation(ref, "look it up", "found", child)
        entries = await core.store.read(lambda uow: uow.log.of_kind(ref.session_id, EntryKind.DELEGATION))
        assert [entry.detail["child"] for entry in entries if entry.detail] == ["one", "two"]
        await core.settled()
        assert [call.more["child_session_id"] for call in diary.book.of("on_delegation")] == ["one", "two"]
