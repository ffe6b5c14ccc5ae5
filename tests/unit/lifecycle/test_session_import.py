from pathlib import Path

from msgspec.structs import replace
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.boundary import Resume
from everthread.domain.export_format import DelegationLine, Item, RewindLine, SessionLine, TurnLine
from everthread.domain.model import SessionKey
from everthread.lifecycle.export import export_lines, select_sessions
from everthread.lifecycle.import_match import ImportOutcome


async def exported(core: CoreFixture) -> tuple[SessionLine, list[Item]]:
    """Export the only session of a store."""
    sessions = await core.store.read(lambda uow: select_sessions(uow, ()))
    lines = [line async for line in export_lines(core.store, sessions, 1.0, "test")]
    (session,) = [line for line in lines if isinstance(line, SessionLine)]
    return session, [line for line in lines if isinstance(line, TurnLine | RewindLine | DelegationLine)]


async def test_an_import_adds_only_the_turns_that_are_missing(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path / "one") as source, CoreFixture(tmp_path / "two") as target:
        session_id = (await source.turn(CLI, "one")).ref.session_id
        outcomes: list[tuple[ImportOutcome, int]] = []
        for text in ("two", None):
            line, items = await exported(source)
            for dry_run in (True, False):
                done = await target.lifecycle.import_session(line, items, owner=ME, before={}, dry_run=dry_run)
                outcomes.append((done.outcome, done.turns))
            if text is not None:
                await source.turn(CLI, text)
        line, items = await exported(source)
        again = await target.lifecycle.import_session(line, items, owner=ME, before={})
        assert outcomes == [(ImportOutcome.NEW, 1)] * 2 + [(ImportOutcome.GROWN, 1)] * 2
        assert again.outcome is ImportOutcome.SAME
        assert await target.shown(session_id) == ["one", "two"]


async def test_a_session_with_another_turn_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path / "one") as source, CoreFixture(tmp_path / "two") as target:
        await source.turn(CLI, "one")
        line, items = await exported(source)
        await target.lifecycle.import_session(line, items, owner=ME, before={})
        (turn,) = items
        assert isinstance(turn, TurnLine)
        other = TurnLine(turn.session, turn.number, "another", turn.at, turn.messages, turn.status, turn.hidden)
        done = await target.lifecycle.import_session(line, [other], owner=ME, before={})
        assert (done.outcome, done.session_id) == (ImportOutcome.DIFFERENT, None)


async def test_an_import_does_not_give_a_group_what_was_said_in_private(tmp_path: Path) -> None:
    group, private = (SessionKey.parse(f"agent:main:fake:{key}") for key in ("group:-100::42", "dm:42"))
    chat = "agent:main:fake:group:-100"
    async with CoreFixture(tmp_path / "one") as source, CoreFixture(tmp_path / "two") as target:
        session_id = (await source.turn(group, "the zebra bus leaves at 0930")).ref.session_id
        await source.lifecycle.cross(private, Resume(session_id), owner=ME)
        await source.turn(private, "the zebra safe opens with 4711")
        line, items = await exported(source)
        await target.lifecycle.import_session(line, items, owner=ME, before={})
        assert await _found_in(target, chat) == [1]


async def test_turns_of_a_file_without_chats_count_as_private(tmp_path: Path) -> None:
    group = SessionKey.parse("agent:main:fake:group:-100::42")
    async with CoreFixture(tmp_path / "one") as source, CoreFixture(tmp_path / "two") as target:
        await source.turn(group, "the zebra safe opens with 4711")
        line, items = await exported(source)
        old = [replace(item, chat=None) for item in items if isinstance(item, TurnLine)]
        await target.lifecycle.import_session(line, old, owner=ME, before={})
        assert await _found_in(target, "agent:main:fake:group:-100") == []


async def _found_in(core: CoreFixture, chat: str) -> list[int]:
    await core.store.index()
    hits = await core.store.read(lambda uow: uow.search.search(ME, "zebra", limit=5, chat=chat))
    return sorted({hit.number for hit in hits})
