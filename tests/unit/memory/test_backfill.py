"""A provider configured later receives earlier sessions once, in order and in their present state."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, Call, CoreFixture, opened, until

from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.errors import NotFound, Rejected, Unavailable
from everthread.domain.events import ForgetScope
from everthread.domain.export_format import MessageLine, SessionLine, TurnLine
from everthread.domain.model import Role
from everthread.lifecycle import ForgetOwner, ForgetSession


async def copied(core: CoreFixture, name: str = "diary") -> int:
    """Copy every session, and wait for the delivery."""
    backfill = core.memory.backfill
    count = await backfill.copy(name, await backfill.backfill_candidates(name))
    await core.settled()
    return count


async def lived(folder: Path) -> tuple[str, str]:
    """Store two sessions that no provider received; return their ids."""
    async with CoreFixture(folder) as core:
        first = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "one")
        await core.turn(CLI, "two")
        second = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "three")
        await core.note("a note")
    return first, second


async def test_a_copy_delivers_sessions_from_the_start_with_their_closes(tmp_path: Path) -> None:
    first, second = await lived(tmp_path)
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.settled()
        assert diary.book.calls == []
        assert await copied(core) == 3
        assert diary.book.told(first) == ["switch", "one", "two", "end"]
        assert diary.book.told(second) == ["switch", "three"]
        assert diary.book.told(f"notes:{ME}")[-1] == "a note"
        assert [call.more["turn"] for call in diary.book.of("sync_turn", first)] == [1, 2]


async def test_a_second_copy_does_nothing(tmp_path: Path) -> None:
    await lived(tmp_path)
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await copied(core)
        told = len(diary.book.calls)
        assert await copied(core) == 0
        assert (len(diary.book.calls), await core.memory.backfill.copying("diary")) == (told, (0, 0))


async def test_a_copy_skips_complete_sessions_and_delivers_the_others_whole(tmp_path: Path) -> None:
    first, second = await lived(tmp_path)
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "four")
        third = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "five")
        await core.settled()
        assert diary.book.told(second) == ["four", "end"]
        assert {one.session_id for one in await core.memory.backfill.backfill_candidates("diary")} >= {first, second}
        assert third not in {one.session_id for one in await core.memory.backfill.backfill_candidates("diary")}
        await copied(core)
        assert diary.book.told(second) == ["four", "end", "switch", "three", "four", "end"]
        assert await copied(core) == 0, "once is enough"
        assert diary.book.told(third) == ["switch", "five"]


async def test_some_sessions_can_be_copied_first_and_others_later(tmp_path: Path) -> None:
    first, second = await lived(tmp_path)
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        backfill = core.memory.backfill
        assert await backfill.copy("diary", await backfill.backfill_candidates("diary", {second})) == 1
        await core.settled()
        assert (diary.book.told(first), diary.book.told(second)) == ([], ["switch", "three"])
        await copied(core)
        assert diary.book.told(second) == ["switch", "three"]
        assert diary.book.told(first) == ["switch", "one", "two", "end"]


async def test_rewound_turns_are_delivered_neither_as_turns_nor_in_a_close(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "kept")
        await core.turn(CLI, "regretted")
        await core.cross(CLI, New())
        await core.cross(CLI, Resume(session))
        await core.cross(CLI, Rewind(1))
        await core.turn(CLI, "instead")
        await core.cross(CLI, New())
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await copied(core)
        told = diary.book.told(session)
        assert told == ["switch", "kept", "end", "switch", "instead", "end"]
        closes = [[turn.user_text for turn in call.view.turns] for call in diary.book.of("on_session_end", session)]
        assert closes == [["kept"], ["kept", "instead"]]
        assert not any(call.more.get("rewound") for call in diary.book.calls)


async def test_a_branch_that_rewinds_inherited_turns_leaves_its_parent_whole(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "one")
        await core.turn(CLI, "two")
        branch = opened(await core.cross(CLI, Branch()))
        await core.cross(CLI, Rewind(1))
        await core.turn(CLI, "other")
        await core.cross(CLI, New())
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await copied(core)
        assert [text for text in diary.book.told(parent) if text not in ("switch", "end")] == ["one", "two"]
        assert [text for text in diary.book.told(branch) if text not in ("switch", "end")] == ["other"]
        (close,) = diary.book.of("on_session_end", branch)
        assert [turn.user_text for turn in close.view.turns] == ["one", "other"]


async def test_a_copy_delivers_no_forgotten_session_and_no_forget_of_copied_ones(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.cross(TELEGRAM, New())
        await core.turn(TELEGRAM, "secret")
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        gone = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "secret too")
        await core.lifecycle.forget(ForgetSession(gone), owner=ME)
        kept = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "later")
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await copied(core)
        assert "secret" not in diary.book.words()
        assert diary.book.of("forget") == []
        assert diary.book.told(kept) == ["switch", "later"]


async def test_a_queued_forget_is_delivered_before_the_copied_session(tmp_path: Path) -> None:
    diary = AsyncDiary()
    await lived(tmp_path)
    down = True

    async def before(call: Call) -> None:
        if down:
            raise Unavailable("diary", "not there")

    async with CoreFixture(tmp_path, diary) as core:
        diary.before = before
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        await until(lambda: diary.book.begun)
        backfill = core.memory.backfill
        waiting = await backfill.backfill_candidates("diary")
        assert any(not one.is_at_rest for one in waiting)
        await backfill.copy("diary", waiting)
        down = False
        await core.settled()
        await copied(core)
        assert diary.book.of("forget"), "a copy has passed over it"


async def test_a_parked_forget_is_still_pending_after_a_copy(tmp_path: Path) -> None:
    diary = AsyncDiary()
    first, _ = await lived(tmp_path)
    picky = True

    async def before(call: Call) -> None:
        if picky and call.hook == "forget":
            raise Rejected("diary", "not that")

    diary.before = before
    async with CoreFixture(tmp_path, diary) as core:
        await core.lifecycle.forget(ForgetSession(first), owner=ME)
        await core.settled()
        await copied(core)
        assert diary.book.of("forget") == []
        picky = False
        assert await core.memory.journal.retry("diary") == 1
        await core.settled()
        assert len(diary.book.of("forget")) == 1


async def test_an_interrupted_copy_continues_at_its_position(tmp_path: Path) -> None:
    first, second = await lived(tmp_path)
    diary = AsyncDiary()

    async def before(call: Call) -> None:
        if call.text == "two":
            raise Unavailable("diary", "gone for now")

    diary.before = before
    async with CoreFixture(tmp_path, diary) as core:
        backfill = core.memory.backfill
        await backfill.copy("diary", await backfill.backfill_candidates("diary"))
        await until(lambda: any(call.text == "two" for call in diary.book.begun))
    again = AsyncDiary()
    async with CoreFixture(tmp_path, again) as core:
        assert await core.memory.backfill.backfill_candidates("diary") == ()
        await core.settled()
        assert diary.book.told(first) + again.book.told(first) == ["switch", "one", "two", "end"]
        assert diary.book.told(second) + again.book.told(second) == ["switch", "three"]


async def test_an_unknown_provider_is_refused(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(NotFound, match="there is no provider 'hive'"):
            await core.memory.backfill.backfill_candidates("hive")


async def test_lag_counts_from_the_oldest_queued_entry_and_ignores_copies(tmp_path: Path) -> None:
    await lived(tmp_path)
    diary = AsyncDiary()
    down = True

    async def before(call: Call) -> None:
        if down:
            raise Unavailable("diary", "not there")

    diary.before = before
    async with CoreFixture(tmp_path, diary) as core:
        backfill = core.memory.backfill
        await backfill.copy("diary", await backfill.backfill_candidates("diary"))
        (status,) = await core.memory.journal.status()
        assert (status.lanes.waiting_entries > 0, status.lanes.oldest_at) == (True, None)
        before_it = core.clock.now()
        await core.turn(TELEGRAM, "now")
        (status,) = await core.memory.journal.status()
        assert status.lanes.oldest_at is not None
        assert status.lanes.oldest_at >= before_it
        down = False
        await core.settled()
        (status,) = await core.memory.journal.status()
        assert status.lanes.oldest_at is None


def left(diary: AsyncDiary) -> set[str]:
    """The turns that a back end keeps if it deletes everything on the forget of a person."""
    kept: set[str] = set()
    for call in diary.book.calls:
        if call.hook == "forget" and call.more["scope"] is ForgetScope.OWNER:
            kept.clear()
        elif call.hook in ("sync_turn", "on_memory_write"):
            kept.add(call.text)
    return kept


async def test_a_late_forget_of_a_person_keeps_later_turns(tmp_path: Path) -> None:
    diary = AsyncDiary()
    down = True

    async def refuse(call: Call) -> None:
        if down and call.hook == "forget":
            raise ConnectionError("down")

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "before")
        await core.settled()
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        await core.turn(CLI, "after")
        await core.note("a note of after")
        await until(lambda: diary.book.of("sync_turn")[-1].text == "after")
        down = False
        await core.settled()
        # The forgets of single sessions arrive in any order; none of them concerns the later session.
        calls = diary.book.calls
        last = max(at for at, call in enumerate(calls) if call.more.get("scope") is ForgetScope.OWNER)
        assert {"after", "a note of after"} <= {call.text for call in calls[last:]}
        assert left(diary) == {"after", "a note of after"}


async def test_a_replay_keeps_turns_after_the_forget_of_a_person(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "before")
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        for number in range(6):
            await core.cross(CLI, New())
            await core.turn(CLI, f"after {number}")
        await core.note("a note of after")
        await core.settled()
        await core.memory.journal.replay("diary")
        await core.settled()
        wanted = {*(f"after {number}" for number in range(6)), "a note of after"}
        assert left(diary) == wanted
        await core.memory.journal.replay("diary", f"notes:{ME}")
        await core.settled()
        assert left(diary) == wanted


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_retried_forget_keeps_later_turns(tmp_path: Path, is_copied: bool) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.note("long ago")
    diary = AsyncDiary()

    async def refuse(call: Call) -> None:
        if call.hook == "forget":
            raise Rejected("diary", "no")

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "before")
        await core.settled()
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        await core.turn(CLI, "after")
        await core.note("a note of after")
        await core.settled()
        if is_copied:
            await copied(core)
        diary.before = None
        assert await core.memory.journal.retry("diary") == 2
        await core.settled()
        assert left(diary) == {"after", "a note of after"}


async def test_a_forget_redelivers_nothing_to_other_owners(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        theirs = (await core.turn(TELEGRAM, "theirs", owner="you")).ref.session_id
        await core.turn(CLI, "mine")
        await core.settled()
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        await core.settled()
        assert diary.book.told(theirs) == ["switch", "theirs"]


async def test_sessions_imported_after_a_copy_can_be_copied(tmp_path: Path) -> None:
    diary = AsyncDiary()
    line = SessionLine("old", ME, str(CLI), 1.0, 2.0, ended_at=3.0, end_reason="ended")
    turns = [
        TurnLine(
            "old", number, f"old.{number}", 2.0, (MessageLine(Role.USER, word), MessageLine(Role.ASSISTANT, "yes"))
        )
        for number, word in enumerate(("one", "two"), start=1)
    ]
    async with CoreFixture(tmp_path, diary) as core:
        await core.lifecycle.import_session(line, turns[:1], owner=ME, before={})
        await core.settled()
        await copied(core)
        assert diary.book.told("old")[:2] == ["switch", "one"]
        await core.lifecycle.import_session(line, turns, owner=ME, before={})
        await core.settled()
        assert "two" not in diary.book.told("old")
        assert await copied(core) == 1
        assert diary.book.told("old")[-4:] == ["one", "end", "two", "end"]
        assert await copied(core) == 0
