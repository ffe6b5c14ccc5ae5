from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture

from everthread.domain.boundary import New
from everthread.domain.errors import Ambiguous, NoSuchSession
from everthread.lifecycle.session_lookup import find_session, find_session_of_any_owner


async def test_a_session_is_found_by_id_prefix_and_title(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        await core.lifecycle.rename(session_id, "The Garden", owner=ME)
        for text in (session_id, session_id[:-1], "the garden"):
            found = await core.store.read(lambda uow, text=text: find_session(uow, text, owner=ME))
            assert found.id == session_id


async def test_a_mistyped_title_is_suggested_to_its_owner_only(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        await core.lifecycle.rename(session_id, "The Garden", owner=ME)
        with pytest.raises(NoSuchSession, match="did you mean 'The Garden'"):
            await core.store.read(lambda uow: find_session(uow, "the gardn", owner=ME))
        with pytest.raises(NoSuchSession) as error:
            await core.store.read(lambda uow: find_session(uow, "the gardn", owner="stranger"))
        assert "Garden" not in str(error.value)


async def test_a_title_that_two_owners_use_is_ambiguous(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.cross(CLI, New("Tax"))
        await core.cross(TELEGRAM, New("Tax"), owner="bob")
        with pytest.raises(Ambiguous, match="2 owners"):
            await core.store.read(lambda uow: find_session_of_any_owner(uow, "Tax"))
