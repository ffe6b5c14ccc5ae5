from pathlib import Path

from tests.runtime import CLI, ME, CoreFixture, opened

from everthread.domain.boundary import Branch, Rewind
from everthread.domain.export_format import EndLine, RewindLine, SessionLine, TurnLine
from everthread.lifecycle.export import export_lines, select_sessions


async def test_a_named_branch_is_exported_after_its_parent(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "one")).ref.session_id
        branch = opened(await core.cross(CLI, Branch()))
        await core.turn(CLI, "two")
        await core.cross(CLI, Rewind(1))
        sessions = await core.store.read(lambda uow: select_sessions(uow, [branch]))
        assert [session.id for session in sessions] == [parent, branch]
        await core.note("likes tea")
        lines = [line async for line in export_lines(core.store, sessions, 1.0, "test", with_notes=True)]
        assert [line.id for line in lines if isinstance(line, SessionLine)] == [parent, branch]
        turns = [(line.session, line.number, line.hidden) for line in lines if isinstance(line, TurnLine)]
        assert turns == [(parent, 1, False), (branch, 2, True)]
        assert [line.turns for line in lines if isinstance(line, RewindLine)] == [(2,)]
        assert lines[-1] == EndLine(2, 2, 1)
        assert {session.owner for session in sessions} == {ME}
