"""What keeps one person, plugin or damaged row from being everybody's problem."""

from pathlib import Path

import pytest
from tests.house import CLI, TELEGRAM, AsyncDiary, Call, House, until

from everthread import plugins
from everthread.domain.boundary import Branch, Compress, New, Reset, Resume, Rewind
from everthread.domain.errors import BadKey, NotFound, Rejected
from everthread.domain.model import ChatType, Inbound, NoteAction, NoteTarget, SessionKey
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("boundary", [Branch(), Rewind(1), Compress("", 0, "s", 0)])
async def test_a_stranger_on_a_key_can_do_nothing_to_the_session_there(tmp_path: Path, boundary: Branch) -> None:
    async with House(tmp_path) as house:
        await house.turn(CLI, "mine")
        here = await house.at(CLI)
        with pytest.raises(NotFound):
            await house.cross(CLI, boundary, owner="stranger")
        assert await house.at(CLI) == here


@pytest.mark.parametrize("boundary", [New(), Reset()])
async def test_a_stranger_on_a_key_starts_afresh_and_sees_nothing(tmp_path: Path, boundary: New) -> None:
    async with House(tmp_path) as house:
        mine = (await house.turn(CLI, "mine")).ref
        theirs = (await house.cross(CLI, boundary, owner="stranger")).ref
        assert theirs is not None
        assert theirs.owner == "stranger"
        assert await house.shown(theirs.session_id) == []
        with pytest.raises(NotFound):
            await house.cross(CLI, Resume(mine.session_id), owner="stranger")


async def test_a_key_too_long_to_be_read_back_is_refused_at_the_door(tmp_path: Path) -> None:
    key = SessionKey("main", "telegram", ChatType.DM, "9" * 600)
    async with House(tmp_path) as house:
        with pytest.raises(BadKey):
            await house.lifecycle.accept(Inbound(key, "me", "hello"))
        with pytest.raises(BadKey):
            await house.cross(key, New())


async def test_a_plugin_may_be_async(tmp_path: Path) -> None:
    heard: list[str] = []

    class Later:
        @plugins.hookimpl
        async def on_session_finalize(self, session_id: str) -> None:
            heard.append(session_id)

    async with House(tmp_path, plugins=(Later(),)) as house:
        left = (await house.turn(CLI, "hello")).ref.session_id
        await house.cross(CLI, New())
        await until(lambda: heard == [left])


async def test_a_lane_that_cannot_be_read_is_reported_and_holds_up_no_other(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with House(tmp_path, diary) as house:
        broken = (await house.turn(CLI, "first")).ref.session_id
        await house.settled()

        def damage(uow: object) -> None:
            uow.log._execute("DELETE FROM messages")  # type: ignore[attr-defined] # noqa: SLF001 - damage on purpose
            uow.log._execute("DELETE FROM turns")  # type: ignore[attr-defined] # noqa: SLF001

        await house.store.write(damage)
        await house.memory.journal.replay("diary", broken)
        await house.reported("memory:diary", "can't be read")
        other = (await house.turn(TELEGRAM, "second")).ref.session_id
        await until(lambda: "second" in [call.text for call in diary.book.of("sync_turn", other)])


async def test_what_a_provider_said_of_a_session_is_forgotten_with_it(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with House(tmp_path, diary) as house:

        async def refuse(call: Call) -> None:
            if call.hook == "sync_turn":
                raise Rejected("diary", f"I will not keep {call.text!r}")

        diary.before = refuse
        session = (await house.turn(CLI, "the elephant in Odense")).ref.session_id
        await house.reported("memory:diary", "elephant")
        await house.lifecycle.forget(ForgetSession(session), owner="me")
        assert not [text for text in await house.incidents() if "elephant" in text]
        assert b"elephant" not in stored(tmp_path)


async def test_a_forgotten_fact_leaves_titles_and_stays_findable_around(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        session = (await house.turn(CLI, "my cat Mog sleeps on the piano")).ref
        await house.lifecycle.rename(session.session_id, "cat Mog", owner="me")
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "cat Mog")
        note = await house.lifecycle.write_note(change, owner="me", ref=session)
        await house.lifecycle.forget(ForgetFact(note.note_id), owner="me")
        assert (await house.session(session.session_id)).title is None
        hits = await house.store.read(lambda uow: uow.turns.search("me", "piano", limit=5))
        assert "my [forgotten] sleeps on the piano" in [hit.content for hit in hits]
        assert await house.store.read(lambda uow: uow.turns.search("me", "Mog", limit=5)) == ()
